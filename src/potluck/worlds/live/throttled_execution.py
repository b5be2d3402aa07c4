"""Runs real work in a thread: waits at its gates, fires its signals and takes as long as the device would.

Latches belong to the event loop, the work to its thread: a gate becomes a threading event, a signal a call on the
event loop. Cancelled work stops at its next step.
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
    """The work was cancelled; not an Exception, so that no model's code swallows it."""


class ThrottledExecution:
    """The Pace of one running work; created on the event loop, used in the thread."""

    holds = True

    def __init__(self, work: Work, compute_speed: ComputeSpeed, now: Callable[[], float]) -> None:
        self._work = work
        self._compute_speed = compute_speed
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._cancelled = threading.Event()
        self._gates: dict[int, threading.Event] = {}
        for index, step in enumerate(work.steps):
            if step.gate is not None:
                self._gates[index] = gate = threading.Event()
                step.gate.then(gate.set)
        self._step_run_time = self._step_wall_time = 0.0  # when the current step started, by the run's and our clock
        self._cost_s = 0.0
        self._next_step = 0  # the first step that has not been entered

    def run(self) -> Any:
        """Run the work and return its result."""
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
        self._work.steps[step].began = self._step_run_time

    def leave(self, step: int) -> None:
        spent_s = time.monotonic() - self._step_wall_time
        self._sleep_or_cancel(
            self._compute_speed.throttled_duration_s(self._step_run_time, spent_s, self._cost_s) - spent_s
        )
        self._finish_step(step)

    def _finish_step(self, step: int) -> None:
        self._fire_signal(self._work.steps[step])
        self._start_timer(0.0)

    def _start_timer(self, seconds: float) -> None:
        self._step_run_time, self._step_wall_time, self._cost_s = self._now(), time.monotonic(), seconds

    def _sleep_through_steps(self, pace: object) -> None:
        for index in range(len(self._work.steps)):
            self.enter(index)
            self._sleep_or_cancel(self._compute_speed.modelled_duration_s(self._step_run_time, self._cost_s))
            self._finish_step(index)

    def _finish_remaining(self) -> None:
        """Finish the steps that the function did not enter."""
        remaining = self._work.steps[self._next_step :]
        if not remaining:
            return
        for index in range(self._next_step, len(self._work.steps)):
            if index in self._gates:
                self._gates[index].wait()
        spent_s = time.monotonic() - self._step_wall_time
        self._sleep_or_cancel(
            self._compute_speed.throttled_duration_s(self._step_run_time, spent_s, sum(map(_step_cost_s, remaining)))
            - spent_s
        )
        for step in remaining:
            self._fire_signal(step)

    def _fire_signal(self, step: Step) -> None:
        step.ended = self._now()
        if step.signal is not None:
            self._loop.call_soon_threadsafe(step.signal.open)

    def _sleep_or_cancel(self, seconds: float) -> None:
        if seconds > 0 and self._cancelled.wait(None if math.isinf(seconds) else seconds):
            raise WorkCancelled


def _step_cost_s(step: Step) -> float:
    """The cost of the step, computed when the step starts if it is a function."""
    return float(step.seconds() if callable(step.seconds) else step.seconds)
