"""Who stays silent is asked again, ever more seldom."""

from __future__ import annotations

import math

from potluck.loops.messages import Invite
from potluck.loops.retry_timer import RetryTimer
from potluck.loops.run_progress import TurnRecord


def _turn(device: str) -> TurnRecord:
    return TurnRecord(Invite(0, 0, 0), device, 1, 0, 0.0, None, None)


def test_each_reminder_comes_after_twice_the_pause_up_to_a_minute() -> None:
    reminders, turn = RetryTimer(5.0), _turn("a")
    reminders.schedule_retry(turn, 0.0)
    moments: list[float] = []
    while len(moments) < 7:
        now = reminders.next_retry_at
        assert reminders.due_turns([turn], now) == [turn]
        moments.append(now)
    assert moments == [5, 15, 35, 75, 135, 195, 255]


def test_only_who_is_due_is_reminded() -> None:
    reminders, early, late = RetryTimer(5.0), _turn("a"), _turn("b")
    reminders.schedule_retry(early, 0.0)
    reminders.schedule_retry(late, 3.0)
    assert reminders.due_turns([early, late], 5.0) == [early]
    assert reminders.next_retry_at == 8.0
    assert reminders.due_turns([late], 8.0) == [late]


def test_with_nobody_silent_there_is_nothing_to_wait_for() -> None:
    reminders = RetryTimer(5.0)
    reminders.schedule_retry(_turn("a"), 0.0)
    assert reminders.due_turns([], 5.0) == []
    assert reminders.next_retry_at == math.inf
