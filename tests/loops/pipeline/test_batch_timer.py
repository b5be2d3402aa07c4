"""When the stages are asked, which of them is quarantined, and when it is contacted again."""

from __future__ import annotations

import pytest

from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import Doing
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.quarantine import Quarantine

PLAN = PipelinePlan((2, 4), ("a", "b", "c"), 6, (3, 2, 1), 0.5, 1)
HERE = {"a", "b", "c"}


def timer_of(*took: float, retry: float = 1.0) -> BatchTimer:
    watch = BatchTimer(retry)
    for seconds in took:
        watch.observe_interval(seconds)
    watch.begin_range(PLAN, 0.0)
    watch.record_batch(0.0)
    return watch


def test_quick_batches_are_missed_after_one_retry_and_a_term_stalls_after_twenty() -> None:
    quick = timer_of(0.001, 0.001)
    assert quick.next_check_at == 2.0
    assert timer_of(0.001, retry=3.0).next_check_at == 3.0
    assert not quick.has_stalled(19.9)
    assert quick.has_stalled(20.0)


def test_a_link_is_only_broken_after_a_lost_message_could_have_been_sent_again() -> None:
    quick = timer_of(0.001, 0.001)
    quick.begin_inquiry(1.0)
    for device in PLAN.order:
        quick.record_answer(device, Doing(1), 1.0)
    assert quick.next_check_at == 7.0


def test_the_timer_follows_mean_and_spread() -> None:
    even, uneven = timer_of(*[10.0] * 50), timer_of(*[5.0, 15.0] * 25)
    assert even.next_check_at == pytest.approx(40.0)
    assert 50.0 < uneven.next_check_at < 120.0


def test_a_forecast_counts_where_nothing_was_seen_and_the_first_batch_passes_all_stages() -> None:
    watch = BatchTimer(0.1)
    watch.begin_range(PLAN, 10.0)
    assert watch.next_check_at == pytest.approx(10.0 + 3 * 0.5 + 4 * 0.5)


def test_a_silent_stage_is_distinguished_from_one_that_answers() -> None:
    watch = timer_of(0.5)
    watch.begin_inquiry(4.0)
    assert watch.next_check_at == 10.0
    watch.record_contact("a")
    watch.record_answer("a", Doing(1), 0.0)
    watch.record_contact("c")  # any message will do
    assert watch.silent_stages(HERE) == ["b"]
    assert watch.unanswered_stages(HERE) == ["b", "c"]
    assert watch.silent_stages({"a", "c"}) == [], "who is known to be lost is not waited for"


def test_if_all_stages_are_silent_none_is_blamed() -> None:
    watch = timer_of(0.5)
    watch.begin_inquiry(4.0)
    assert watch.silent_stages(HERE) == []


def test_a_batch_ends_the_inquiry() -> None:
    watch = timer_of(0.5)
    watch.begin_inquiry(4.0)
    watch.record_batch(5.0)
    assert not watch.is_inquiring
    assert watch.next_check_at == 7.0
    assert not watch.has_stalled(24.0)
    assert watch.has_stalled(25.0)


def _rounds(*reports: dict[str, Doing]) -> BatchTimer:
    watch = timer_of(0.5)
    for number, answers in enumerate(reports):
        watch.begin_inquiry(4.0 * (number + 1))
        for device, doing in answers.items():
            watch.record_answer(device, doing, 0.0)
    return watch


AWAITS = Doing(1, awaits=(("b", "Activation", 7),))
SENT = Doing(1, sent=(("Activation", 7),))


def test_a_link_is_broken_where_what_was_sent_is_waited_for_twice() -> None:
    assert _rounds({"c": AWAITS, "b": SENT}, {"c": AWAITS, "b": SENT}).find_broken_link() == ("c", "b")
    back = {"b": Doing(1, awaits=(("c", "Gradient", 3),)), "c": Doing(1, sent=(("Gradient", 3),))}
    assert _rounds(back, back).find_broken_link() == ("c", "b"), "the later stage is excluded, whichever one waits"


def test_a_link_is_not_broken_where_it_only_takes_time() -> None:
    assert _rounds({"c": AWAITS, "b": SENT}).find_broken_link() is None, "asked once"
    assert _rounds({"c": AWAITS, "b": Doing(1)}, {"c": AWAITS, "b": SENT}).find_broken_link() is None, "just sent"
    assert _rounds({"c": AWAITS, "b": SENT}, {"c": Doing(1), "b": SENT}).find_broken_link() is None, "arrived"
    assert _rounds({"c": AWAITS}, {"c": AWAITS}).find_broken_link() is None, "no stage reports having sent it"


def test_a_quarantined_device_is_contacted_at_growing_intervals() -> None:
    quarantine = Quarantine()
    quarantine.add_device("a", 10.0, 4.0)
    assert "a" in quarantine
    assert (quarantine.due_devices(13.0), quarantine.due_devices(14.0), quarantine.next_retry_at) == ([], ["a"], 18.0)
    assert quarantine.release_device("a")
    assert not quarantine.release_device("a")
    quarantine.add_device("a", 20.0, 4.0)
    assert quarantine.next_retry_at == 28.0
    quarantine.forget_device("a")
    assert "a" not in quarantine
    quarantine.add_device("a", 30.0, 4.0)
    assert quarantine.next_retry_at == 34.0, "a new incarnation starts with the first interval again"
