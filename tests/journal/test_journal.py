from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import RunError
from potluck.journal import Instant, Journal, JournalRecord, JournalTotals, Scalar, Span, read_journal

NAMES = st.text(max_size=8)
TIMES = st.floats(0, 1e12)
FIELDS = st.dictionaries(NAMES, st.one_of(st.integers(-(2**53), 2**53), st.floats(-1e9, 1e9), NAMES, st.booleans()))
RECORDS: st.SearchStrategy[JournalRecord] = st.one_of(
    st.builds(Span, NAMES, NAMES, TIMES, TIMES, FIELDS),
    st.builds(Instant, NAMES, NAMES, TIMES, FIELDS),
    st.builds(Scalar, NAMES, NAMES, TIMES, st.floats(allow_nan=False, allow_infinity=False), FIELDS),
)
SOME: list[JournalRecord] = [
    Span("pi4-0", "pull", 0.0, 1.5, {"round": 0, "bytes": 10}),
    Instant("pi4-0", "crash", 2.0),
    Scalar("coordinator", "loss", 3.0, 0.1 + 0.2, {"round": 1}),
]


def _write_journal(path: Path, records: list[JournalRecord], position: int = 0) -> int:
    with Journal(path, position) as journal:
        for record in records:
            journal.write_record(record)
        return journal.sync_to_disk()


@settings(max_examples=40, deadline=None)
@given(records=st.lists(RECORDS, max_size=8))
def test_written_content_is_read_back(records: list[JournalRecord], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    assert _write_journal(path, records) == path.stat().st_size
    assert list(read_journal(path)) == records
    assert path.read_bytes().count(b"\n") == len(records)


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        _write_journal(tmp_path / name, SOME)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_journal_is_truncated_at_the_checkpoint_position(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    position = _write_journal(path, SOME[:2])
    _write_journal(path, [SOME[2]] * 50, position)
    with Journal(path, position) as journal:
        assert journal.position() == position
        journal.write_record(SOME[2])
    assert list(read_journal(path)) == SOME


def test_the_position_includes_unflushed_records(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.write_record(SOME[0])
        before = journal.position()
        assert path.stat().st_size < before
        assert journal.sync_to_disk() == before
        assert path.stat().st_size == before


def test_a_new_journal_overwrites_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write_journal(path, SOME)
    _write_journal(path, SOME[:1])
    assert list(read_journal(path)) == SOME[:1]


def test_a_journal_shorter_than_its_checkpoint_position_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    position = _write_journal(path, SOME)
    _write_journal(path, SOME[:1])
    with pytest.raises(RunError, match="journal"):
        Journal(path, position)


def test_a_journal_without_a_file_still_counts() -> None:
    totals = JournalTotals()
    with Journal(None, totals=totals) as journal:
        for record in SOME:
            journal.write_record(record)
        assert journal.position() == journal.sync_to_disk() == 0
    assert totals.device_summary(10.0)["pi4-0"]["pull_s"] == 1.5


def test_an_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    _write_journal(path, SOME)
    content = path.read_bytes()
    last = content.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(last, len(content)):
        path.write_bytes(content[:end])
        assert list(read_journal(path)) == SOME[:2]


def test_closing_twice_is_allowed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write_record(SOME[0])
    journal.close()
    journal.close()
    assert list(read_journal(tmp_path / "journal")) == SOME[:1]


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(), min_size=3, max_size=3),
    fields=st.dictionaries(NAMES, st.recursive(st.one_of(st.floats(), st.none()), lambda v: st.lists(v, max_size=2))),
)
def test_whatever_is_written_can_be_read(
    times: list[float], fields: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """NaN and infinity are `null` in JSON; such a line made a run unreadable for `resume` and `report`."""
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    records = [
        Span("a", "x", times[0], times[1], fields), Instant("a", "x", times[0], fields),
        Scalar("a", "x", times[0], times[2], fields), *SOME,
    ]  # fmt: skip
    with Journal(path, totals=JournalTotals()) as journal:
        for record in records:
            journal.write_record(record)
    assert list(read_journal(path))[-len(SOME) :] == SOME
    assert all(None not in (record.fields.get("bytes", 0),) for record in read_journal(path))


def test_only_the_fields_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    written = Instant("a", "x", 1.0, {"round": 3, "bytes": float("nan"), "none": None})
    _write_journal(tmp_path / "j", [written, Scalar("a", "x", 1.0, float("inf"))])
    assert list(read_journal(tmp_path / "j")) == [Instant("a", "x", 1.0, {"round": 3, "none": None})]
