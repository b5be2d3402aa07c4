"""A device's outgoing line: what flows goes first, and copies use the time when nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import Latch, Node

__all__ = ["Bell", "Crew", "Line"]


class Bell:
    """Something that happens again and again: whoever waits is woken by the next time."""

    def __init__(self) -> None:
        self._latch = Latch()

    def ring(self) -> None:
        rung, self._latch = self._latch, Latch()
        rung.open()

    async def wait(self, seconds: float | None = None) -> bool:
        return await self._latch.wait(seconds)


class Crew:
    """Tasks that live and die together; an error in one of them is told."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def disband(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


class Line:
    """Sends what flows at once and remembers whether anything is on its way."""

    def __init__(self, node: Node, crew: Crew) -> None:
        self._node = node
        self._crew = crew
        self._busy = 0
        self._idle = Bell()
        self._meter = 0

    def read_meter(self) -> int:
        """Bytes that were sent since the last reading."""
        read, self._meter = self._meter, 0
        return read

    def count(self, nbytes: int) -> None:
        self._meter += nbytes

    def send(self, to: str, message: Bulky, **fields: Any) -> asyncio.Task[None]:
        self._busy += 1
        self.count(message.nbytes)
        return self._crew.start(self._carry(to, message, fields))

    async def idle(self, seconds: float) -> None:
        """Wait until nothing flows, but not longer than this."""
        if self._busy:
            await self._idle.wait(seconds)

    async def _carry(self, to: str, message: Bulky, fields: dict[str, Any]) -> None:
        began = self._node.now()
        try:
            await self._node.send(to, message)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.ring()
        what = {"to": to, "what": type(message).__name__, "bytes": message.nbytes, **fields}
        self._node.record(Span(self._node.name, "send", began, self._node.now(), what))
