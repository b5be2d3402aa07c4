"""Totals of a journal while it is written: seconds, bytes and events per device, and what limited the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from potluck.journal.device_status import DeviceStatus
from potluck.journal.journal_reader import RecordDecoder, read_journal
from potluck.journal.journal_records import Instant, JournalRecord, Scalar, Span
from potluck.journal.stragglers import StragglerTracker
from potluck.units import format_percent

__all__ = ["ACCOUNT", "DeviceTotals", "JournalTotals"]

ACCOUNT = "account"  # an instant that accounts for the samples of a device's stream

_PHASES = ("pull", "compute", "push")
_PHASE_OF = {
    **{phase: phase for phase in _PHASES},
    "forward": "compute", "backward": "compute", "receive": "pull", "send": "push", "replicate": "push",
}  # fmt: skip
_NEXT_ACTIVITY = {"pull": "computing", "compute": "pushing", "push": "waiting", "joined": "waiting", "lost": "lost"}


class DeviceTotals(NamedTuple):
    """The totals of one or more devices."""

    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    bytes: float = 0.0
    samples: int = 0
    updates: int = 0
    lost: int = 0
    late: int = 0
    pulled_bytes: float = 0.0
    pushed_bytes: float = 0.0


class JournalTotals:
    """Seconds per device and phase (pull, compute, push), bytes, and how often a device was lost or late."""

    def __init__(self, keep_scalars: bool = False) -> None:
        self.run_scalars: list[Scalar] = []  # of the coordinator, if they are kept
        self._keep_scalars = keep_scalars
        self._seconds: dict[str, dict[str, float]] = {}
        self._bytes: dict[str, dict[str, float]] = {}
        self._samples: dict[str, int] = {}
        self._events: dict[str, dict[str, int]] = {}
        self._state: dict[str, str] = {}
        self._starved: dict[str, float] = {}  # seconds spent waiting for streamed data
        self._accounts: dict[tuple[str, str], dict[str, int]] = {}  # the latest account of each stream
        self._stragglers = StragglerTracker()
        self.device_status = DeviceStatus()

    def add_record(self, record: JournalRecord) -> None:
        self.device_status.add_record(record)
        if isinstance(record, Span) and record.name in _PHASE_OF:
            self._add_phase(record, _PHASE_OF[record.name])
            self._stragglers.add_phase(record)
        elif isinstance(record, Span) and record.name == "stream":
            self._starved[record.node] = self._starved.get(record.node, 0.0) + record.end - record.start
            self._stragglers.add_phase(record)
        elif isinstance(record, Span) and record.name == "round":
            self._stragglers.close_round(record)
        elif isinstance(record, Instant) and record.name == ACCOUNT:
            self._accounts[record.node, str(record.fields.get("stream"))] = _integer_fields(record.fields)
        elif isinstance(record, Instant):
            self._count_event(record.node, record.name)
        elif self._keep_scalars and isinstance(record, Scalar) and record.node == "coordinator":
            self.run_scalars.append(record)

    def _add_phase(self, span: Span, phase: str) -> None:
        seconds = self._seconds.get(span.node)
        if seconds is None:
            self._bytes[span.node] = dict.fromkeys(_PHASES, 0.0)
            seconds = self._seconds[span.node] = dict.fromkeys(_PHASES, 0.0)
        seconds[phase] += span.end - span.start
        self._bytes[span.node][phase] += span.fields.get("bytes", 0)
        self._samples[span.node] = self._samples.get(span.node, 0) + span.fields.get("samples", 0)
        self._state[span.node] = _NEXT_ACTIVITY[phase]
        if span.name == "push" and span.fields.get("layers", (0,))[0] == 0:  # the last segment of an update
            self._count_event(span.node, "updates")

    def _count_event(self, node: str, event: str) -> None:
        events = self._events.setdefault(node, {})
        events[event] = events.get(event, 0) + 1
        if event in _NEXT_ACTIVITY:
            self._state[node] = _NEXT_ACTIVITY[event]

    def add_journal(self, path: Path) -> int:
        """Add all records of an existing journal; returns how many of its lines cannot be read."""
        decoder = RecordDecoder()
        for record in read_journal(path, decoder):
            self.add_record(record)
        return decoder.unreadable

    def current_activity(self, device: str) -> str:
        """What a device has been doing since its last record."""
        return self._state.get(device, "waiting")

    def sum_devices(self, devices: Iterable[str]) -> DeviceTotals:
        """The totals of these devices together."""
        pull = compute = push = nbytes = pulled = pushed = 0.0
        samples = updates = lost = late = 0
        for name in devices:
            seconds, events = self._seconds.get(name), self._events.get(name)
            if seconds is not None:
                pull, compute, push = pull + seconds["pull"], compute + seconds["compute"], push + seconds["push"]
                moved = self._bytes[name]
                pulled, pushed = pulled + moved["pull"], pushed + moved["push"]
                nbytes, samples = nbytes + sum(moved.values()), samples + self._samples.get(name, 0)
            if events is not None:
                updates, lost = updates + events.get("updates", 0), lost + events.get("lost", 0)
                late += events.get("late", 0)
        return DeviceTotals(pull, compute, push, nbytes, samples, updates, lost, late, pulled, pushed)

    def device_summary(self, now: float) -> dict[str, dict[str, Any]]:
        """Seconds per phase, waiting time, bytes and event counts of each device."""
        return {
            name: {
                **{f"{phase}_s": value for phase, value in seconds.items()},
                "wait_s": max(now - sum(seconds.values()), 0.0),
                "bytes": sum(self._bytes[name].values()),
                "samples": self._samples.get(name, 0),
                **self._events.get(name, {}),
            }
            for name, seconds in sorted(self._seconds.items())
        }

    def stream_summary(self) -> dict[str, int] | None:
        """The sample accounts of all streams and incarnations added up; None if there are none."""
        if not self._accounts:
            return None
        total: dict[str, int] = {}
        for account in self._accounts.values():
            for name, count in account.items():
                total[name] = total.get(name, 0) + count
        return total

    def bottleneck_sentence(self, now: float) -> str:
        """What limited the run, in one sentence: the straggler, or else the busiest device and its main activity."""
        if not self._seconds or now <= 0:
            return "nothing was measured"
        verdict = self._stragglers.worst_straggler(now)
        if verdict is not None:
            return verdict.describe_straggler(now)
        name, starved = max(self._starved.items(), key=lambda item: (item[1], item[0]), default=("", 0.0))
        if starved > now / 2:
            waited = format_percent(min(starved / now, 1.0), 0)
            return f"{name} waited for data {waited} of the time: its stream is too slow"
        return self._busiest_device(now)

    def _busiest_device(self, now: float) -> str:
        name, seconds = max(self._seconds.items(), key=lambda item: (sum(item[1].values()), item[0]))
        phase, spent = max(seconds.items(), key=lambda item: item[1])
        busy = min(sum(seconds.values()) / now, 1.0)  # concurrent transfers are counted more than once
        if busy < 0.5:
            most = format_percent(busy, 0)
            return f"no device was busy for more than {most} of the time; the rest was waiting for the coordinator"
        doing = {"pull": "its downlink (receiving)", "push": "its uplink (sending)"}
        what = doing.get(phase, "its processor (computing)")
        total, largest = format_percent(busy, 0), format_percent(min(spent / now, 1.0), 0)
        return f"{name} was busy {total} of the time, above all with {what}, {largest}"


def _integer_fields(fields: Mapping[str, Any]) -> dict[str, int]:
    """The integer fields of an account; other fields are ignored."""
    return {name: value for name, value in fields.items() if isinstance(value, int) and name != "round"}
