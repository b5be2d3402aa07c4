from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.journal import Instant, Journal, JournalRecord, JournalTotals, Scalar, Span
from potluck.journal.journal_totals import DeviceTotals

SPANS = st.builds(
    lambda node, name, start, long, size: Span(node, name, float(start), float(start + long), {"bytes": size}),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["pull", "compute", "push", "round"]),
    st.integers(0, 100),
    st.integers(0, 9),
    st.integers(0, 1000),
)
INSTANTS = st.builds(Instant, st.sampled_from(["a", "b"]), st.sampled_from(["crash", "late"]), st.just(1.0))
RECORDS: st.SearchStrategy[JournalRecord] = st.one_of(SPANS, INSTANTS)


def _totals(*records: JournalRecord) -> JournalTotals:
    totals = JournalTotals()
    for record in records:
        totals.add_record(record)
    return totals


def test_the_latest_account_of_every_stream_counts() -> None:
    totals = _totals(
        Instant("a", "account", 1.0, {"round": 7, "stream": "x", "streamed": 5, "late": 1}),
        Instant("a", "account", 2.0, {"round": 8, "stream": "x", "streamed": 9, "late": 1}),
        Instant("a", "account", 3.0, {"stream": "y", "streamed": 2, "late": 0, "trained": "lots"}),
        Instant("b", "account", 3.0, {"stream": "x", "streamed": 4, "late": 2}),
    )
    assert totals.stream_summary() == {"streamed": 9 + 2 + 4, "late": 3}
    assert _totals(Instant("a", "crash", 1.0)).stream_summary() is None
    assert totals.device_summary(3.0) == {}, "it is nothing that happened to a device"


def test_seconds_bytes_and_events_of_a_device() -> None:
    totals = _totals(
        Span("a", "pull", 0.0, 2.0, {"bytes": 100}),
        Span("a", "compute", 2.0, 5.0, {"samples": 8}),
        Span("a", "push", 5.0, 6.0, {"bytes": 50}),
        Span("a", "pull", 7.0, 8.0, {"bytes": 100}),
        Span("coordinator", "round", 0.0, 6.0),
        Scalar("coordinator", "loss", 6.0, 1.0),
        Instant("a", "crash", 8.5),
        Instant("a", "crash", 9.5),
    )
    (device,) = totals.device_summary(10.0).values()
    assert device == {
        "pull_s": 3.0, "compute_s": 3.0, "push_s": 1.0, "wait_s": 3.0,
        "bytes": 250, "samples": 8, "updates": 1, "crash": 2,
    }  # fmt: skip
    assert totals.sum_devices(["a", "nobody"]) == DeviceTotals(
        3.0, 3.0, 1.0, 250, samples=8, updates=1, pulled_bytes=200, pushed_bytes=50
    )  # fmt: skip
    assert totals.sum_devices([]) == DeviceTotals()


@settings(deadline=None)
@given(records=st.lists(RECORDS, max_size=20))
def test_sums_do_not_depend_on_the_order(records: list[JournalRecord]) -> None:
    forward, backward = _totals(*records), _totals(*reversed(records))
    assert forward.device_summary(500.0) == backward.device_summary(500.0)
    assert forward.bottleneck_sentence(500.0) == backward.bottleneck_sentence(500.0)


@settings(max_examples=40, deadline=None)
@given(records=st.lists(RECORDS, max_size=20), cut=st.integers(0, 20))
def test_totals_restored_from_a_journal_continue_as_if_never_stopped(
    records: list[JournalRecord], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path: Path = tmp_path_factory.mktemp("totals") / "journal"
    with Journal(path) as journal:
        for record in records[:cut]:
            journal.write_record(record)
    resumed = JournalTotals()
    resumed.add_journal(path)
    for record in records[cut:]:
        resumed.add_record(record)
    assert resumed.device_summary(500.0) == _totals(*records).device_summary(500.0)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "nothing was measured"),
        ([Span("a", "pull", 0.0, 8.0), Span("b", "compute", 0.0, 3.0)], "a was busy 80 % of the time"),
        ([Span("a", "pull", 0.0, 8.0)], "downlink"),
        ([Span("a", "push", 0.0, 8.0)], "uplink"),
        ([Span("a", "compute", 0.0, 8.0), Span("a", "pull", 8.0, 9.0)], "processor"),
        ([Span("a", "compute", 0.0, 2.0)], "no device was busy for more than 20 %"),
    ],
)
def test_the_bottleneck_is_described_in_one_sentence(records: list[JournalRecord], message: str) -> None:
    assert message in _totals(*records).bottleneck_sentence(10.0)


def test_totals_are_empty_at_the_start() -> None:
    assert _totals(Span("a", "pull", 0.0, 0.0)).bottleneck_sentence(0.0) == "nothing was measured"


def test_waiting_is_never_negative() -> None:
    """Spans of one device may overlap where transfers hide behind computation."""
    totals = _totals(Span("a", "pull", 0.0, 9.0), Span("a", "compute", 0.0, 9.0))
    assert totals.device_summary(10.0)["a"]["wait_s"] == 0.0


def test_current_activity_follows_the_last_record() -> None:
    totals = _totals()
    activities = [totals.current_activity("a")]
    for record in (Span("a", "pull", 0.0, 1.0), Span("a", "compute", 1.0, 2.0), Instant("a", "late", 2.0)):
        totals.add_record(record)
        activities.append(totals.current_activity("a"))
    assert activities == ["waiting", "computing", "pushing", "pushing"]
    totals.add_record(Instant("a", "lost", 3.0))
    assert (totals.current_activity("a"), totals.current_activity("b")) == ("lost", "waiting")
