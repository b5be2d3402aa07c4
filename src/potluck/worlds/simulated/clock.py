"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Timers with equal times fire in the order in which they were set, and a timer fires at exactly its time, so a run
is the same each time and can be taken up again at any instant (see docs/decisions/0002-own-virtual-clock.md).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

__all__ = ["NothingLeftError", "VirtualLoop", "run"]

T = TypeVar("T")


class NothingLeftError(RuntimeError):
    """Everyone waits and nothing is due: a bug in a loop, since every wait there is bounded."""


class VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's loop with its selector replaced by a jump in time."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self._now = start
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = itertools.count()
        self._selector = _Jump(self)

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._sequence), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def jump(self) -> None:
        """Move on to the next timer and make all that is due then ready."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise NothingLeftError("every task waits and no timer is set")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)  # type: ignore[attr-defined]

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: nothing outside this process takes part."""

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector, so nobody needs waking."""


class _Jump:
    """What the loop takes for its selector; asked with no time-out only when nothing is ready."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            self._loop.jump()
        return []


def run(main: Coroutine[Any, Any, T], start: float = 0.0) -> T:
    """Run `main` to its end on a clock that shows `start` at first; whatever else still runs then is cancelled."""
    loop = VirtualLoop(start)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_cancel_the_rest())
        loop.close()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
