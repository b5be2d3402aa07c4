"""An unanswered request is repeated, at growing intervals."""

from __future__ import annotations

import math

from potluck.loops.retry_timer import RetryTimer


def _due_times(timer: RetryTimer[str], count: int) -> list[float]:
    times: list[float] = []
    while len(times) < count:
        times.append(timer.next_retry_at)
        assert timer.due_requests(["a"], times[-1]) == ["a"]
    return times


def test_each_pause_is_twice_the_one_before_up_to_a_minute() -> None:
    timer = RetryTimer[str](5.0)
    timer.schedule_retry("a", 0.0)
    assert _due_times(timer, 7) == [5, 15, 35, 75, 135, 195, 255]


def test_a_request_that_is_yet_to_be_sent_is_due_at_once() -> None:
    timer = RetryTimer[str](2.0, 8.0)
    timer.schedule_first("a", 1.0)
    assert _due_times(timer, 6) == [1, 3, 7, 15, 23, 31]


def test_only_the_requests_that_are_due_are_repeated() -> None:
    timer = RetryTimer[str](5.0)
    timer.schedule_retry("early", 0.0)
    timer.schedule_retry("late", 3.0)
    assert timer.due_requests(["early", "late"], 5.0) == ["early"]
    assert timer.next_retry_at == 8.0
    assert timer.due_requests(["late"], 8.0) == ["late"]


def test_with_everything_answered_there_is_nothing_to_wait_for() -> None:
    timer = RetryTimer[str](5.0)
    timer.schedule_retry("a", 0.0)
    assert timer.due_requests([], 5.0) == []
    assert timer.next_retry_at == math.inf
