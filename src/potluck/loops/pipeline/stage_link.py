"""A device's outgoing line: what flows goes first, and copies use the time when nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import Latch, Node

__all__ = ["BackgroundTaskGroup", "StageLink", "WakeSignal"]


class WakeSignal:
    """Something that happens again and again: whoever waits is woken by the next time."""

    def __init__(self) -> None:
        self._latch = Latch()

    def notify(self) -> None:
        rung, self._latch = self._latch, Latch()
        rung.open()

    async def wait(self, seconds: float | None = None) -> bool:
        return await self._latch.wait(seconds)


class BackgroundTaskGroup:
    """Tasks that live and die together; an error in one of them is told."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._on_error = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def cancel_all(self) -> None:
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(error)


class StageLink:
    """Sends what flows at once and remembers whether anything is on its way."""

    def __init__(self, node: Node, crew: BackgroundTaskGroup) -> None:
        self._node = node
        self._task_group = crew
        self._sends_in_flight = 0
        self._idle = WakeSignal()
        self._sent_bytes = 0

    def take_sent_bytes(self) -> int:
        """Bytes that were sent since the last reading."""
        read, self._sent_bytes = self._sent_bytes, 0
        return read

    def count_bytes(self, nbytes: int) -> None:
        self._sent_bytes += nbytes

    def send(self, to: str, message: Bulky, **fields: Any) -> asyncio.Task[None]:
        self._sends_in_flight += 1
        self.count_bytes(message.nbytes)
        return self._task_group.start_task(self._send_and_record(to, message, fields))

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait until nothing flows, but not longer than this."""
        if self._sends_in_flight:
            await self._idle.wait(seconds)

    async def _send_and_record(self, to: str, message: Bulky, fields: dict[str, Any]) -> None:
        began = self._node.now()
        try:
            await self._node.send(to, message)
        finally:
            self._sends_in_flight -= 1
            if not self._sends_in_flight:
                self._idle.notify()
        what = {"to": to, "what": type(message).__name__, "bytes": message.nbytes, **fields}
        self._node.record(Span(self._node.name, "send", began, self._node.now(), what))
