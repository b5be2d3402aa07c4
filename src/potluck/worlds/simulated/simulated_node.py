"""Implements Node in virtual time: one incarnation of one device, or the coordinator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.journal import JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import COMPLETED, Envelope, Step, Work
from potluck.worlds.simulated.compute_pool import PendingResult

if TYPE_CHECKING:
    from potluck.worlds.simulated.simulated_machine import SimulatedMachine
    from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["SimulatedNode"]

TimedSteps = list[tuple[Step, float, float]]  # steps whose times are wanted, and the work before and up to their ends


class SimulatedNode:
    """A Node whose time is virtual, whose messages cross the simulated network and whose work runs in the pool."""

    __slots__ = (
        "_compute_lock",
        "_inbox",
        "_pending_result",
        "_waiter",
        "_world",
        "incarnation",
        "machine",
        "name",
        "task",
    )

    def __init__(self, world: SimulatedWorld, machine: SimulatedMachine, incarnation: int) -> None:
        self._world = world
        self.machine = machine
        self.name = machine.name
        self.incarnation = incarnation
        self.task: asyncio.Task[None] | None = None
        self._inbox: deque[Envelope] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._compute_lock: asyncio.Lock | None = None
        self._pending_result: PendingResult | None = None

    def now(self) -> float:
        return self._world.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        future = self._world.send_message(self, to, message)
        return COMPLETED if future is None else future

    async def receive(self, until: float | None = None) -> Envelope | None:
        if not self._inbox:
            await self._wait_for_message(until)
        return self._inbox.popleft() if self._inbox else None

    async def compute(self, work: Work) -> Any:
        """Run the steps in virtual time; the real function starts after the last gate."""
        if not work.steps:
            return None if work.run is None else work.run(_UNPACED)
        if self._compute_lock is None:
            self._compute_lock = asyncio.Lock()
        async with self._compute_lock:
            try:
                return await self._run_steps(work)
            finally:
                self._discard_pending()

    def speed(self) -> float:
        return self.machine.speed_curve.speed_at(self.now())

    def rng(self, *name: object) -> np.random.Generator:
        return self._world.rng(self.name, *name)

    def record(self, record: JournalRecord) -> None:
        self._world.journal.write_record(record)

    def deliver(self, envelope: Envelope) -> None:
        self._inbox.append(envelope)
        self._wake_receiver()

    def cancel_main(self) -> None:
        """End this incarnation."""
        self._discard_pending()
        if self.task is not None:
            self.task.cancel()

    def _discard_pending(self) -> None:
        """Discard the result that is still being computed."""
        if self._pending_result is not None:
            self._pending_result.discard_result()
            self._pending_result = None

    def _wake_receiver(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait_for_message(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if until is None else loop.call_at(max(until, loop.time()), self._wake_receiver)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _run_steps(self, work: Work) -> Any:
        """Pass the time of each step; submit the function once all gates are open and all costs are known."""
        unresolved = sum((step.gate is not None) + callable(step.seconds) for step in work.steps)
        submitted = False
        result: Any = None
        unspent = 0.0
        timed: TimedSteps = []
        for index, step in enumerate(work.steps):
            if step.gate is not None:
                unresolved -= 1
                if not step.gate.is_open:
                    await self._pass_work_time(unspent, timed)
                    unspent = 0.0
                    await step.gate.wait()
            seconds = step.seconds
            if callable(seconds):
                unresolved -= 1
                await self._pass_work_time(unspent, timed)
                unspent, seconds = 0.0, seconds()
            if unresolved == 0 and not submitted:
                submitted = True
                self._submit_function(work, index, unspent + seconds)
            if step.timed:
                timed.append((step, unspent, unspent + seconds))
            unspent += seconds
            if step.signal is not None or index == len(work.steps) - 1:
                await self._pass_work_time(unspent, timed)
                unspent = 0.0
                if submitted:
                    result = self._collect_result(result)
                if step.signal is not None:
                    step.signal.open()
        return result

    def _submit_function(self, work: Work, index: int, first_s: float) -> None:
        run = work.run
        if run is None:
            return
        later = (step.seconds for step in work.steps[index + 1 :])
        seconds = first_s + sum(cost for cost in later if not callable(cost))
        due = self.machine.speed_curve.finish_time(self.now(), seconds)
        self._pending_result = self._world.pool.submit(lambda: run(_UNPACED), due)

    def _collect_result(self, result: Any) -> Any:
        """The function's result, collected when the first signal or the end is due."""
        pending, self._pending_result = self._pending_result, None
        return result if pending is None else pending.take_result()

    def _finish_time(self, seconds: float) -> float:
        """When this much work, begun now, is done at the device's speed."""
        return self.machine.speed_curve.finish_time(self.now(), seconds) if seconds > 0 else self.now()

    async def _pass_work_time(self, seconds: float, timed: TimedSteps) -> None:
        """Wait as long as this much work takes at the device's speed, and set the times of the timed steps."""
        reached = 0.0, self.now()  # an amount of work, and when it is done
        for step, before, spent in timed:
            step.began = reached[1] if before == reached[0] else self._finish_time(before)
            step.ended = self._finish_time(spent)
            reached = spent, step.ended
        timed.clear()
        if seconds <= 0:
            return
        end = self._finish_time(seconds)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        timer = None if math.isinf(end) else loop.call_at(end, _set_done, done)
        try:
            await done
        finally:
            if timer is not None:
                timer.cancel()


class _UnpacedExecution:
    """A Pace that never waits: in virtual time all gates are open before the function starts."""

    holds = False

    def enter(self, step: int) -> None:
        pass

    def leave(self, step: int) -> None:
        pass


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_UNPACED = _UnpacedExecution()
