"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Timers with equal times fire in the order in which they were set, and a timer fires at exactly its time, so a run is
reproducible and can be resumed at any instant (see docs/decisions/0002-own-virtual-clock.md). The loop is kept lean,
since a simulated fleet consists mostly of timers: callbacks run in the caller's context, not in copies of it, and an
exception in one of them ends the run.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["SimulationDeadlockError", "VirtualLoop", "run_virtual_time"]

T = TypeVar("T")


class SimulationDeadlockError(RuntimeError):
    """All tasks wait and no timer is set: a bug in a loop, since every wait in it is bounded."""


class VirtualHandle:
    """A scheduled callback that can be cancelled."""

    __slots__ = ("args", "callback", "done")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.done = False

    def cancel(self) -> None:
        self.done = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.done


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's loop without a selector: when no callback is ready, time jumps to the next timer."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._due_calls: deque[VirtualHandle] = deque()
        self._timers: list[tuple[float, int, VirtualHandle]] = []
        self._sequence = itertools.count()
        self._sweep_at = 1000

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> VirtualHandle:  # type: ignore[override]
        call = VirtualHandle(callback, args)
        self._due_calls.append(call)
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        call = VirtualHandle(callback, args)
        heapq.heappush(self._timers, (when, next(self._sequence), call))
        if len(self._timers) > self._sweep_at:
            self._discard_cancelled()
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        return self.call_at(self._now + delay, callback, *args)

    def _run_once(self) -> None:
        """Run the callbacks that are ready; if there are none, first jump to the next timer."""
        ready = self._due_calls
        if not ready:
            self._advance_clock()
        for _ in range(len(ready)):
            call = ready.popleft()
            if not call.done:
                call.callback(*call.args)

    def _discard_cancelled(self) -> None:
        """Remove cancelled timers; most timers are timeouts for answers that do arrive."""
        self._timers = [timer for timer in self._timers if not timer[2].done]
        heapq.heapify(self._timers)
        self._sweep_at = max(1000, 2 * len(self._timers))

    def _advance_clock(self) -> None:
        timers = self._timers
        while timers and timers[0][2].done:
            heapq.heappop(timers)
        if not timers:
            raise SimulationDeadlockError("every task waits and no timer is set")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._due_calls.append(heapq.heappop(timers)[2])

    def _write_to_self(self) -> None:
        """No selector to wake."""


def run_virtual_time(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """Run `main` to completion on a clock that starts at `start`; then cancel all remaining tasks."""
    loop = VirtualLoop(start)
    thresholds = gc.get_threshold()
    gc.set_threshold(20_000, 20, 20)  # events create many small objects and hardly any cycles
    gc.freeze()  # a large fleet stays alive: do not scan it again and again
    try:
        return loop.run_until_complete(main)
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        loop.run_until_complete(_cancel_remaining_tasks())
        loop.close()


async def _cancel_remaining_tasks() -> None:
    remaining = asyncio.all_tasks() - {asyncio.current_task()}
    for task in remaining:
        task.cancel()
    await asyncio.gather(*remaining, return_exceptions=True)
