"""The history of a run, built record by record so that a running one can be followed."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from potluck.journal import Instant, JournalRecord, JournalTotals, Scalar, Span

__all__ = ["LANES", "JournalEvent", "RunHistory", "ScalarSeries", "SpanTrack", "lane_index"]

LANES = ("compute", "receive", "send", "recover", "stream", "other", "round")

_LANE_OF = {
    "compute": "compute",
    "train": "compute",
    "forward": "compute",
    "backward": "compute",
    "pull": "receive",
    "receive": "receive",
    "fetch": "receive",
    "push": "send",
    "send": "send",
    "replicate": "send",
    "recover": "recover",
    "settle": "recover",
    "stream": "stream",
    "round": "round",
}

_MAX_DETAILS = 20_000  # distinct span descriptions; beyond that only a span's name is kept
_MAX_LIST_ITEMS = 8
_OTHER = LANES.index("other")
_MAX_EVENTS = 50_000
_NOT_LISTED = {"bandwidth", "lose", "committed", "account"}  # frequent, and visible in the spans and curves
_SEQUENCE_FIELDS = ("round", "batch", "part", "version")  # number similar spans; the first one present is kept


class SpanTrack:
    """The spans of one node, as columns."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")
        self.rounds = array("i")
        self.details = array("i")
        self.received = 0.0
        self.sent = 0.0

    def __len__(self) -> int:
        return len(self.starts)


class ScalarSeries:
    """A quantity over time, with the round and the total bytes where the records have them."""

    def __init__(self) -> None:
        self.at = array("d")
        self.values = array("d")
        self.rounds = array("d")
        self.traffic = array("d")
        self.better = ""  # "higher" or "lower", of a metric that says so

    def add_scalar(self, scalar: Scalar) -> None:
        self.at.append(scalar.at)
        self.values.append(scalar.value)
        self.rounds.append(scalar.fields.get("round", -1))
        self.traffic.append(scalar.fields.get("bytes", -1))
        self.better = scalar.fields.get("better", self.better)


class JournalEvent(NamedTuple):
    """Something that happened to a node."""

    at: float
    node: str
    name: str
    fields: dict[str, Any]


class RunHistory:
    """Everything that a report needs from a journal, compact enough for large runs."""

    def __init__(self) -> None:
        self.tracks: dict[str, SpanTrack] = {}
        self.series: dict[tuple[str, str], ScalarSeries] = {}  # by name and node
        self.events: list[JournalEvent] = []
        self.counts: Counter[tuple[str, str]] = Counter()  # events by node and name, including those not kept
        self.details: list[dict[str, Any]] = []
        self.lanes: list[int] = []  # lane of each detail
        self.totals = JournalTotals()
        self.rounds = 0
        self.unreadable = 0  # lines of the journal that are no records
        self.end = 0.0
        self._detail_indices: dict[object, int] = {}

    def add_records(self, records: Iterable[JournalRecord]) -> RunHistory:
        for record in records:
            self.add_record(record)
        return self

    def add_record(self, record: JournalRecord) -> None:
        self.totals.add_record(record)
        if isinstance(record, Span):
            self._add_span(record)
        elif isinstance(record, Scalar):
            self.series.setdefault((record.name, record.node), ScalarSeries()).add_scalar(record)
            self.end = max(self.end, record.at)
        elif isinstance(record, Instant):
            self._add_event(record)

    def _add_span(self, span: Span) -> None:
        track = self.tracks.get(span.node)
        if track is None:
            track = self.tracks[span.node] = SpanTrack()
        self.end = max(self.end, span.end)
        if span.end == span.start and lane_index(span.name) == _OTHER:
            return  # has no duration and no lane
        detail = self._detail_index(span)
        track.starts.append(span.start)
        track.ends.append(span.end)
        track.rounds.append(_round_number(span.fields))
        track.details.append(detail)
        self._count_traffic(track, LANES[self.lanes[detail]], span)

    def _count_traffic(self, track: SpanTrack, lane: str, span: Span) -> None:
        if lane == "receive":
            track.received += span.fields.get("bytes", 0)
        elif lane == "send":
            track.sent += span.fields.get("bytes", 0)
        elif lane == "round":
            self.rounds = max(self.rounds, int(span.fields.get("round", self.rounds)) + 1)

    def _detail_index(self, span: Span) -> int:
        """The index of this span's description; descriptions repeat, so each is kept once."""
        key: tuple[Any, ...] = (span.name, *[item for item in span.fields.items() if item[0] not in _SEQUENCE_FIELDS])
        try:
            index = self._detail_indices.get(key)
        except TypeError:  # a list is not hashable
            key = (
                span.name,
                *((name, _short_value(value)) for name, value in span.fields.items() if name not in _SEQUENCE_FIELDS),
            )
            index = self._detail_indices.get(key)
        return index if index is not None else self._add_detail(span, key)

    def _add_detail(self, span: Span, key: tuple[Any, ...]) -> int:
        kept = {name: _short_value(value) for name, value in span.fields.items() if name not in _SEQUENCE_FIELDS}
        unit = next((name for name in _SEQUENCE_FIELDS if name in span.fields), "round")
        if len(self.details) >= _MAX_DETAILS:
            key, kept = (span.name,), {}
        index = self._detail_indices.setdefault(key, len(self.details))
        if index == len(self.details):
            self.details.append({"name": span.name, "unit": unit, **kept})
            self.lanes.append(lane_index(span.name))
        return index

    def _add_event(self, instant: Instant) -> None:
        self.end = max(self.end, instant.at)
        self.counts[instant.node, instant.name] += 1
        if instant.name == "committed":
            self.rounds = max(self.rounds, int(instant.fields.get("batch", self.rounds)) + 1)
        if instant.name not in _NOT_LISTED and len(self.events) < _MAX_EVENTS:
            self.events.append(JournalEvent(instant.at, instant.node, instant.name, instant.fields))


def _round_number(fields: dict[str, Any]) -> int:
    """The round, batch or version of a span; -1 if it has none."""
    for name in _SEQUENCE_FIELDS:
        value = fields.get(name)
        if isinstance(value, int):
            return value
    return -1


def _short_value(value: Any) -> Any:
    """A hashable value to show: long or nested lists are replaced by their length."""
    if isinstance(value, list):
        plain = len(value) <= _MAX_LIST_ITEMS and not any(isinstance(item, list | dict) for item in value)
        return tuple(value) if plain else len(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


def lane_index(name: str) -> int:
    """The index in LANES of spans with this name."""
    return LANES.index(_LANE_OF.get(name, "other"))
