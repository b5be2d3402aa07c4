"""Who stays silent is asked again, ever more seldom."""

from __future__ import annotations

import math

from potluck.loops.messages import Invite
from potluck.loops.progress import Turn
from potluck.loops.reminders import Reminders


def _turn(device: str) -> Turn:
    return Turn(Invite(0, 0, 0), device, 1, 0, 0.0, None, None)


def test_each_reminder_comes_after_twice_the_pause_up_to_a_minute() -> None:
    reminders, turn = Reminders(5.0), _turn("a")
    reminders.watch(turn, 0.0)
    moments: list[float] = []
    while len(moments) < 7:
        now = reminders.next_at
        assert reminders.due([turn], now) == [turn]
        moments.append(now)
    assert moments == [5, 15, 35, 75, 135, 195, 255]


def test_only_who_is_due_is_reminded() -> None:
    reminders, early, late = Reminders(5.0), _turn("a"), _turn("b")
    reminders.watch(early, 0.0)
    reminders.watch(late, 3.0)
    assert reminders.due([early, late], 5.0) == [early]
    assert reminders.next_at == 8.0
    assert reminders.due([late], 8.0) == [late]


def test_with_nobody_silent_there_is_nothing_to_wait_for() -> None:
    reminders = Reminders(5.0)
    reminders.watch(_turn("a"), 0.0)
    assert reminders.due([], 5.0) == []
    assert reminders.next_at == math.inf
