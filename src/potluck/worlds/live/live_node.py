"""Implements Node in real time, over a real network and on a real processor."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from potluck import seeds
from potluck.journal import JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import COMPLETED, Envelope, Work
from potluck.worlds.live.compute_speed import ComputeSpeed
from potluck.worlds.live.peer_directory import NodeIdentity
from potluck.worlds.live.run_clock import RunClock
from potluck.worlds.live.throttled_execution import ThrottledExecution, WorkCancelled
from potluck.worlds.live.work_thread import WorkThread

__all__ = ["LiveNode"]

_CLOSE_TIMEOUT_S = 10.0

_log = logging.getLogger("potluck")

Send = Callable[[str, Message], Awaitable[None] | None]


class LiveNode:
    """One incarnation of one device, or the coordinator."""

    def __init__(
        self,
        identity: NodeIdentity,
        clock: RunClock,
        compute_speed: ComputeSpeed,
        send: Send,
        record: Callable[[JournalRecord], None],
        on_listening: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = identity.name
        self.incarnation = identity.incarnation
        self._seed = identity.seed
        self._clock = clock
        self._compute_speed = compute_speed
        self._send = send
        self._record = record
        self._on_listening = on_listening  # called when the loop waits for a message for the first time
        self.is_listening = False
        self._inbox: deque[Envelope] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._work_thread = WorkThread(f"potluck-work-{identity.name}")
        self._executions: set[ThrottledExecution] = set()

    def now(self) -> float:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        future = self._send(to, message)
        return COMPLETED if future is None else future

    async def receive(self, until: float | None = None) -> Envelope | None:
        if not self.is_listening:
            self.is_listening = True
            self._on_listening()
        if not self._inbox:
            await self._wait_for_message(until)
        return self._inbox.popleft() if self._inbox else None

    async def compute(self, work: Work) -> Any:
        """Run the work in this node's only worker thread; cancelled work stops at its next step."""
        execution = ThrottledExecution(work, self._compute_speed, self.now)
        self._executions.add(execution)
        try:
            return await self._work_thread.submit(execution.run)
        except asyncio.CancelledError:
            execution.cancel_work()
            raise
        except WorkCancelled:
            raise asyncio.CancelledError from None
        finally:
            self._executions.discard(execution)

    def speed(self) -> float:
        return self._compute_speed.current_speed()

    def rng(self, *name: object) -> np.random.Generator:
        return seeds.child_generator(self._seed, self.name, *name)

    def record(self, record: JournalRecord) -> None:
        self._record(record)

    def deliver(self, envelope: Envelope) -> None:
        self._inbox.append(envelope)
        self._wake_receiver()

    async def close(self) -> None:
        """Cancel all work and wait for the thread, which can stop only between steps; not for a step that hangs."""
        for execution in self._executions:
            execution.cancel_work()
        if not await self._work_thread.close(_CLOSE_TIMEOUT_S):
            _log.warning("%s: a computation has not ended after %g s; going on without it", self.name, _CLOSE_TIMEOUT_S)

    def _wake_receiver(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_message(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if until is None else loop.call_later(max(0.0, until - self.now()), self._wake_receiver)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
