"""Real work in a thread that keeps to its gates, fires its signals and takes as long as the device would.

The latches live on the event loop, the work in its thread: a gate is handed over as a threading event, a signal as a
call on the loop. Work that was given up gets out at its next step.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from potluck.loops.node import Step, Work
from potluck.worlds.live.effort import Effort

__all__ = ["GivenUp", "LivePace"]


class GivenUp(BaseException):
    """Nobody waits for this work any more; not an Exception, so that no model's code swallows it."""


class LivePace:
    """One piece of work under way; made on the event loop, used in the thread."""

    holds = True

    def __init__(self, work: Work, effort: Effort, now: Callable[[], float]) -> None:
        self._work = work
        self._effort = effort
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._gates: dict[int, threading.Event] = {}
        for place, step in enumerate(work.steps):
            if step.gate is not None:
                self._gates[place] = gate = threading.Event()
                step.gate.then(gate.set)
        self._began, self._started = 0.0, 0.0  # run time and processor time at which the present step began
        self._seconds = 0.0
        self._next = 0  # the first step that was not entered

    def run(self) -> Any:
        """Do all of it."""
        self._start(0.0)
        result = (self._work.run or self._pass_time)(self)
        self._finish()
        return result

    def give_up(self) -> None:
        self._over.set()
        for gate in self._gates.values():
            gate.set()

    def enter(self, step: int) -> None:
        if step in self._gates:
            self._gates[step].wait()
        if self._over.is_set():
            raise GivenUp
        self._next = max(self._next, step + 1)
        self._start(_seconds(self._work.steps[step]))

    def leave(self, step: int) -> None:
        spent = time.monotonic() - self._started
        self._rest(self._effort.stretched(self._began, spent, self._seconds) - spent)
        self._end(step)

    def _end(self, step: int) -> None:
        self._fire(self._work.steps[step])
        self._start(0.0)

    def _start(self, seconds: float) -> None:
        self._began, self._started, self._seconds = self._now(), time.monotonic(), seconds

    def _pass_time(self, pace: object) -> None:
        for place in range(len(self._work.steps)):
            self.enter(place)
            self._rest(self._effort.takes(self._began, self._seconds))
            self._end(place)

    def _finish(self) -> None:
        """Steps that the function did not mention are over now."""
        rest = self._work.steps[self._next :]
        if not rest:
            return
        for place in range(self._next, len(self._work.steps)):
            if place in self._gates:
                self._gates[place].wait()
        spent = time.monotonic() - self._started
        self._rest(self._effort.stretched(self._began, spent, sum(map(_seconds, rest))) - spent)
        for step in rest:
            self._fire(step)

    def _fire(self, step: Step) -> None:
        step.ended = self._now()
        if step.signal is not None:
            self._loop.call_soon_threadsafe(step.signal.open)

    def _rest(self, seconds: float) -> None:
        if seconds > 0 and self._over.wait(None if math.isinf(seconds) else seconds):
            raise GivenUp


def _seconds(step: Step) -> float:
    """What the step costs; one that can only tell when it begins is asked then."""
    return float(step.seconds() if callable(step.seconds) else step.seconds)
