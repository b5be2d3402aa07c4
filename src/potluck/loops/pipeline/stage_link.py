"""A device's outgoing link: micro-batches go first, and copies use the time in which none is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import Latch, Node

__all__ = ["BackgroundTaskGroup", "StageLink", "WakeSignal"]


class WakeSignal:
    """A repeatable event: each notification wakes all that wait for it."""

    def __init__(self) -> None:
        self._latch = Latch()

    def notify(self) -> None:
        latch, self._latch = self._latch, Latch()
        latch.open()

    async def wait(self, seconds: float | None = None) -> bool:
        return await self._latch.wait(seconds)


class BackgroundTaskGroup:
    """Tasks that are cancelled together; an error in one of them is passed on."""

    def __init__(self, on_error: Callable[[BaseException], None]) -> None:
        self._on_error = on_error
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
    """Sends messages at once and knows whether any is in flight."""

    def __init__(self, node: Node, task_group: BackgroundTaskGroup) -> None:
        self._node = node
        self._task_group = task_group
        self._sends_in_flight = 0
        self._idle = WakeSignal()
        self._sent_bytes = 0

    def take_sent_bytes(self) -> int:
        """The bytes sent since the last call."""
        sent, self._sent_bytes = self._sent_bytes, 0
        return sent

    def count_bytes(self, nbytes: int) -> None:
        self._sent_bytes += nbytes

    def send(self, to: str, message: Bulky, **fields: Any) -> asyncio.Task[None]:
        self._sends_in_flight += 1
        self.count_bytes(message.nbytes)
        return self._task_group.start_task(self._send_and_record(to, message, fields))

    async def wait_until_idle(self, seconds: float) -> None:
        """Wait until nothing is in flight, but at most this long."""
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
        fields = {"to": to, "what": type(message).__name__, "bytes": message.nbytes, **fields}
        self._node.record(Span(self._node.name, "send", began, self._node.now(), fields))
