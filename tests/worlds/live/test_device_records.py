"""Whatever records a device sends, the journal stays readable, bounded and true to the run's clock."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from potluck.journal import Instant, Journal, JournalRecord, JournalTotals, Scalar, Span, read_journal
from potluck.worlds.live.control_messages import JournalBatch
from potluck.worlds.live.device_records import DeviceRecords, record_refusal
from potluck.worlds.live.journal_forwarding import JournalForwarder

NOW = 100.0
HONEST: list[JournalRecord] = [
    Span("a", "pull", 0.0, 1.0, {"round": 3, "bytes": 100, "layers": [0, 2]}),
    Span("a", "push", 0.0, 1.0, {"round": 3, "bytes": 100}),
    Span("a", "step", 0.0, 0.0, {"batch": 3, "version": 4, "stage": 0, "term": 1}),
    Span("a", "compute", 99.0, NOW + 0.5),
    Scalar("a", "share", 1.0, 0.5, {"round": 3, "least": 0.1}),
    Instant("a", "joined", 1.0),
    Instant("a", "account", 1.0, {"round": 3, "stream": "a/1", "arrived": 7, "dropped": None}),
]
DISHONEST: list[JournalRecord] = [
    Span("b", "pull", 0.0, 1.0),
    Span("a", "pull", 0.0, 1.0, {"bytes": "many"}),
    Span("a", "pull", 0.0, 1.0, {"bytes": -1}),
    Span("a", "pull", 0.0, 1.0, {"bytes": 1e308}),
    Span("a", "compute", 0.0, 1.0, {"samples": True}),
    Span("a", "compute", 0.0, 1.0, {"samples": math.nan}),
    Span("a", "push", 0.0, 1.0, {"round": None}),
    Span("a", "push", 0.0, 1.0, {"layers": 3}),
    Span("a", "push", 0.0, 1.0, {"layers": []}),
    Span("a", "push", 0.0, 1.0, {"layers": ["0"]}),
    Span("a", "push", 2.0, 1.0),
    Span("a", "push", 0.0, 1e308),
    Span("a", "push", -1e9, 1.0),
    Span("a", "round", 0.0, 1.0, {"round": 10**6}),
    Span("a", "x" * 1000, 0.0, 1.0),
    Span("a", "", 0.0, 1.0),
    Span("a", "push", 0.0, 1.0, {str(number): number for number in range(1000)}),
    Span("a", "push", 0.0, 1.0, {"x" * 1000: 1}),
    Span("a", "push", 0.0, 1.0, {"deep": [[[[[[1]]]]]]}),
    Span("a", "push", 0.0, 1.0, {"long": [0] * 1000}),
    Span("a", "push", 0.0, 1.0, {"text": "x" * 10_000}),
    Span("a", "push", 0.0, 1.0, {"large": 2**70}),
    Span("a", "push", 0.0, 1.0, {"nested": {"value": math.inf}}),
    Span("a", "push", 0.0, 1.0, {"ext": msgspec.msgpack.Ext(3, b"")}),
    Span("a", "push", 0.0, 1.0, {"bytes_": b"binary"}),
    Instant("a", "partition", 1.0, {"order": 5}),
    Scalar("a", "share", 1.0, 1e308),
    JournalRecord(),
]


@pytest.mark.parametrize("record", HONEST)
def test_a_device_s_records_about_itself_are_accepted(record: JournalRecord) -> None:
    assert record_refusal(record, "a", NOW) is None
    JournalTotals().add_record(record)


@pytest.mark.parametrize("record", DISHONEST)
def test_records_about_others_or_with_invalid_fields_are_refused(record: JournalRecord) -> None:
    """A device whose record said `bytes = "many"` would have ended the run of everybody."""
    assert record_refusal(record, "a", NOW)


def _numbers(kind: type[JournalRecord]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.type is float or field.type == "float"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, -1e308, float(2**63), -(2.0**63)])
@pytest.mark.parametrize("kind", [Span, Instant, Scalar])
def test_no_number_of_a_record_is_believed_without_bounds(kind: type[JournalRecord], value: float) -> None:
    honest: dict[type[JournalRecord], JournalRecord] = {
        Span: Span("a", "x", 1.0, 2.0), Instant: Instant("a", "x", 1.0), Scalar: Scalar("a", "x", 1.0, 2.0),
    }  # fmt: skip
    assert _numbers(kind), "the fields of a record are found"
    for name in _numbers(kind):
        if (name, value) != ("value", -(2.0**63)):
            assert record_refusal(msgspec.structs.replace(honest[kind], **{name: value}), "a", NOW), name


def _received(*records: JournalRecord) -> list[JournalRecord]:
    """As they arrive: encoded and decoded."""
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode(JournalBatch(list(records))), type=JournalBatch)  # type: ignore[arg-type]
    return list(batch.records)


def test_a_span_at_no_time_is_an_offence_and_leaves_the_journal_readable(tmp_path: Path) -> None:
    """It was written as `null`, after which neither `resume` nor `report` could read the run."""
    path = tmp_path / "journal.jsonl"
    with Journal(path, totals=JournalTotals()) as journal:
        records = DeviceRecords(journal.write_record, lambda: NOW)
        for bad in (math.nan, math.inf, -math.inf):
            assert records.add_batch("a", _received(Span("a", "push", bad, bad))) is not None
        assert records.add_batch("a", _received(Span("b", "push", 0.0, 1.0))) is not None
        assert records.add_batch("a", _received(Span("a", "push", 0.0, 10 * NOW))) is None, "its clock may be wrong"
        assert records.add_batch("a", _received(Span("a", "push", 0.0, 1.0))) is None
    written = list(read_journal(path))
    assert [record for record in written if isinstance(record, Span)] == [Span("a", "push", 0.0, 1.0)]


def test_refused_records_are_counted_and_said_once_a_minute() -> None:
    now, written = [NOW], list[Any]()
    records = DeviceRecords(written.append, lambda: now[0])
    for _ in range(50):
        records.add_batch("a", [Span("a", "push", 5.0, 1.0)])
    assert [(record.name, record.fields["count"]) for record in written] == [("records refused", 1)]
    now[0] += 61.0
    records.add_batch("a", [Span("a", "push", 5.0, 1.0)])
    assert [record.fields["count"] for record in written] == [1, 50]
    assert "is not within the run's" in written[0].fields["reason"]


def test_the_records_of_a_device_are_limited_in_number() -> None:
    now, written = [NOW], list[Any]()
    records = DeviceRecords(written.append, lambda: now[0])
    flood = [Span("a", "push", 0.0, 1.0)] * 1000
    for _ in range(1000):
        records.add_batch("a", flood)
    assert len(written) < 50_000
    assert written[-1].name == "records refused"
    assert records.add_batch("b", flood[:1]) is not None, "it is about another device"
    now[0] += 10.0
    before = len(written)
    records.add_batch("a", flood)
    assert len(written) == before + 1000, "it may write again after a while"


def test_a_device_does_not_send_what_is_not_finite() -> None:
    sent: list[JournalBatch] = []
    forwarder = JournalForwarder(sent.append)
    forwarder._timer = object()  # type: ignore[assignment]  # no event loop here
    for record in (Span("a", "x", math.nan, 1.0), Scalar("a", "x", 1.0, math.inf), Instant("a", "x", 1.0, {"v": 1.0})):
        forwarder.add_record(record)
    forwarder._timer = None
    forwarder.flush()
    assert [batch.records for batch in sent] == [[Instant("a", "x", 1.0, {"v": 1.0})]]
    assert forwarder.dropped == 2
