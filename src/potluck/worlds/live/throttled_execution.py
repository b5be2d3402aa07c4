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
from potluck.worlds.live.compute_speed import ComputeSpeed

__all__ = ["ThrottledExecution", "WorkCancelled"]


class WorkCancelled(BaseException):
    """Nobody waits for this work any more; not an Exception, so that no model's code swallows it."""


class ThrottledExecution:
    """One piece of work under way; made on the event loop, used in the thread."""

    holds = True

    def __init__(self, work: Work, effort: ComputeSpeed, now: Callable[[], float]) -> None:
        self._work = work
        self._compute_speed = effort
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        self._gates: dict[int, threading.Event] = {}
        for place, step in enumerate(work.steps):
            if step.gate is not None:
                self._gates[place] = gate = threading.Event()
                step.gate.then(gate.set)
        self._step_run_time, self._step_wall_time = (
            0.0,
            0.0,
        )  # run time and processor time at which the present step began
        self._cost_s = 0.0
        self._next_step = 0  # the first step that was not entered

    def run(self) -> Any:
        """Do all of it."""
        self._start_timer(0.0)
        result = (self._work.run or self._sleep_through_steps)(self)
        self._finish_remaining()
        return result

    def cancel_work(self) -> None:
        self._cancelled.set()
        for gate in self._gates.values():
            gate.set()

    def enter(self, step: int) -> None:
        if step in self._gates:
            self._gates[step].wait()
        if self._cancelled.is_set():
            raise WorkCancelled
        self._next_step = max(self._next_step, step + 1)
        self._start_timer(_step_cost_s(self._work.steps[step]))

    def leave(self, step: int) -> None:
        spent = time.monotonic() - self._step_wall_time
        self._sleep_or_cancel(
            self._compute_speed.throttled_duration_s(self._step_run_time, spent, self._cost_s) - spent
        )
        self._finish_step(step)

    def _finish_step(self, step: int) -> None:
        self._fire_signal(self._work.steps[step])
        self._start_timer(0.0)

    def _start_timer(self, seconds: float) -> None:
        self._step_run_time, self._step_wall_time, self._cost_s = self._now(), time.monotonic(), seconds

    def _sleep_through_steps(self, pace: object) -> None:
        for place in range(len(self._work.steps)):
            self.enter(place)
            self._sleep_or_cancel(self._compute_speed.modelled_duration_s(self._step_run_time, self._cost_s))
            self._finish_step(place)

    def _finish_remaining(self) -> None:
        """Steps that the function did not mention are over now."""
        rest = self._work.steps[self._next_step :]
        if not rest:
            return
        for place in range(self._next_step, len(self._work.steps)):
            if place in self._gates:
                self._gates[place].wait()
        spent = time.monotonic() - self._step_wall_time
        self._sleep_or_cancel(
            self._compute_speed.throttled_duration_s(self._step_run_time, spent, sum(map(_step_cost_s, rest))) - spent
        )
        for step in rest:
            self._fire_signal(step)

    def _fire_signal(self, step: Step) -> None:
        step.ended = self._now()
        if step.signal is not None:
            self._loop.call_soon_threadsafe(step.signal.open)

    def _sleep_or_cancel(self, seconds: float) -> None:
        if seconds > 0 and self._cancelled.wait(None if math.isinf(seconds) else seconds):
            raise WorkCancelled


def _step_cost_s(step: Step) -> float:
    """What the step costs; one that can only tell when it begins is asked then."""
    return float(step.seconds() if callable(step.seconds) else step.seconds)
