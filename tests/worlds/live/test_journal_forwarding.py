from __future__ import annotations

import pytest

from potluck.journal import Instant, JournalRecord, JournalTotals, Scalar, Span
from potluck.worlds.live.journal_forwarding import is_valid_record

HONEST: list[JournalRecord] = [
    Span("a", "pull", 0.0, 1.0, {"round": 3, "bytes": 100, "layers": [0, 2]}),
    Span("a", "push", 0.0, 1.0, {"round": 3, "bytes": 100}),
    Span("a", "step", 0.0, 0.0, {"batch": 3, "version": 4, "stage": 0, "term": 1}),
    Scalar("a", "share", 1.0, 0.5, {"round": 3, "least": 0.1}),
    Instant("a", "joined", 1.0),
]
DISHONEST: list[JournalRecord] = [
    Span("b", "pull", 0.0, 1.0),
    Span("a", "pull", 0.0, 1.0, {"bytes": "many"}),
    Span("a", "compute", 0.0, 1.0, {"samples": True}),
    Span("a", "push", 0.0, 1.0, {"round": None}),
    Span("a", "push", 0.0, 1.0, {"layers": 3}),
    Span("a", "push", 0.0, 1.0, {"layers": []}),
    Span("a", "round", 0.0, 1.0, {"round": 10**6}),
    Instant("a", "partition", 1.0, {"order": 5}),
    JournalRecord(),
]


@pytest.mark.parametrize("record", HONEST)
def test_a_device_s_records_about_itself_are_accepted(record: JournalRecord) -> None:
    assert is_valid_record(record, "a")
    JournalTotals().add_record(record)


@pytest.mark.parametrize("record", DISHONEST)
def test_records_about_others_or_with_invalid_fields_are_dropped(record: JournalRecord) -> None:
    """A device whose record said `bytes = "many"` would have ended the run of everybody."""
    assert not is_valid_record(record, "a")
