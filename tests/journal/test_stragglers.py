from __future__ import annotations

from potluck.journal import JournalRecord, JournalTotals, Span


def _round(round_number: int, slow: str, activity: str, *, by: float = 5.0) -> list[JournalRecord]:
    """A round of ten seconds in which one device takes longer for one activity than the other."""
    start, records = 10.0 * round_number, []
    for name in ("a", "b"):
        at = start
        for step in ("pull", "compute", "push"):
            length = 1.0 + (by if (name, step) == (slow, activity) else 0.0)
            records.append(Span(name, step, at, at + length, {"round": round_number}))
            at += length
    fields = {"round": round_number, "devices": [["a", 1], ["b", 1]]}
    return [*records, Span("coordinator", "round", start, start + 10.0, fields)]


def _limit(*rounds: list[JournalRecord]) -> str:
    totals = JournalTotals()
    for records in rounds:
        for record in records:
            totals.add_record(record)
    return totals.bottleneck_sentence(10.0 * len(rounds))


def test_the_straggler_is_named_with_its_reason() -> None:
    said = _limit(*(_round(number, "b", "push") for number in range(4)))
    assert "b was waited for in 4 of 4 rounds" in said
    assert "its uplink (pushing updates), 60 % of that time" in said
    assert "50 % shorter" in said


def test_the_most_frequent_straggler_is_named() -> None:
    slow = [_round(0, "a", "compute"), _round(1, "b", "pull"), _round(2, "b", "pull")]
    assert "b was waited for in 2 of 3 rounds, above all because of its downlink" in _limit(*slow)


def test_records_written_after_their_round_still_count() -> None:
    """In a live run the coordinator records the end of a round before the devices report their pushes."""
    rounds = [_round(number, "b", "push") for number in range(4)]
    late = [sorted(records, key=lambda record: getattr(record, "name", "") == "push") for records in rounds]
    assert _limit(*late) == _limit(*rounds)


def test_without_waiting_the_busiest_device_is_named() -> None:
    assert "busy" in _limit(*(_round(number, "b", "push", by=0.0) for number in range(4)))


def test_the_stages_of_a_pipeline_are_counted_as_computing() -> None:
    totals = JournalTotals()
    totals.add_record(Span("a", "forward", 0.0, 4.0))
    totals.add_record(Span("a", "backward", 4.0, 9.0))
    assert "a was busy 90 % of the time, above all with its processor" in totals.bottleneck_sentence(10.0)


def test_concurrent_transfers_do_not_exceed_the_whole_time() -> None:
    totals = JournalTotals()
    for _ in range(3):
        totals.add_record(Span("a", "send", 0.0, 9.0))
    assert "busy 100 % of the time" in totals.bottleneck_sentence(10.0)


def test_an_update_in_segments_is_one_update() -> None:
    totals = JournalTotals()
    for layers in ([3, 5], [1, 2], [0, 0]):
        totals.add_record(Span("a", "push", 0.0, 1.0, {"round": 0, "layers": layers}))
    totals.add_record(Span("a", "push", 1.0, 2.0, {"round": 1}))
    assert totals.sum_devices(["a"]).updates == 2


def test_equally_slow_streams_are_reported_as_lack_of_data() -> None:
    rounds = [
        [Span(name, "stream", 10.0 * number, 10.0 * number + 8.0, {"round": number}) for name in ("a", "b")]
        + _round(number, "a", "push", by=0.0)
        for number in range(3)
    ]
    assert _limit(*rounds) == "b waited for data 80 % of the time: its stream is too slow"
