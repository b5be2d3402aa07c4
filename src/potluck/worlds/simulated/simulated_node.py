"""A node of the simulated world: one life of one device, or the coordinator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.journal import JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import Envelope, Step, Work
from potluck.worlds.simulated.compute_pool import PendingResult

if TYPE_CHECKING:
    from potluck.worlds.simulated.simulated_machine import SimulatedMachine
    from potluck.worlds.simulated.simulated_world import SimulatedWorld

__all__ = ["SimulatedNode"]

Timed = list[tuple[Step, float]]  # steps that are asked when they ended, and the work until then


class SimulatedNode:
    """Speaks the seam's words in virtual time."""

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

    def __init__(self, world: SimulatedWorld, site: SimulatedMachine, incarnation: int) -> None:
        self._world = world
        self.machine = site
        self.name = site.name
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
        sent = self._world.send_message(self, to, message)
        return _NOTHING if sent is None else sent

    async def receive(self, until: float | None = None) -> Envelope | None:
        if not self._inbox:
            await self._wait_for_message(until)
        return self._inbox.popleft() if self._inbox else None

    async def compute(self, work: Work) -> Any:
        """Walk through the steps in virtual time; the real function starts behind the last gate."""
        if not work.steps:
            return None if work.run is None else work.run(_FREE)
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
        """This life is over."""
        self._discard_pending()
        if self.task is not None:
            self.task.cancel()

    def _discard_pending(self) -> None:
        """Whatever is still being worked out is not needed any more."""
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
        """Costs that are chosen on the way are chosen in virtual time; the function begins when all is settled."""
        unsettled = sum((step.gate is not None) + callable(step.seconds) for step in work.steps)
        begun = False
        result: Any = None
        unspent = 0.0
        timed: Timed = []
        for place, step in enumerate(work.steps):
            if step.gate is not None:
                unsettled -= 1
                if not step.gate.is_open:
                    await self._pass_work_time(unspent, timed)
                    unspent = 0.0
                    await step.gate.wait()
            seconds = step.seconds
            if callable(seconds):
                unsettled -= 1
                await self._pass_work_time(unspent, timed)
                unspent, seconds = 0.0, seconds()
            if unsettled == 0 and not begun:
                begun = True
                self._submit_function(work, place, unspent + seconds)
            unspent += seconds
            if step.timed:
                timed.append((step, unspent))
            if step.signal is not None or place == len(work.steps) - 1:
                await self._pass_work_time(unspent, timed)
                unspent = 0.0
                if begun:
                    result = self._collect_result(result)
                if step.signal is not None:
                    step.signal.open()
        return result

    def _submit_function(self, work: Work, place: int, pending: float) -> None:
        run = work.run
        if run is None:
            return
        later = (step.seconds for step in work.steps[place + 1 :])
        seconds = pending + sum(cost for cost in later if not callable(cost))
        due = self.machine.speed_curve.finish_time(self.now(), seconds)
        self._pending_result = self._world.pool.submit(lambda: run(_FREE), due)

    def _collect_result(self, result: Any) -> Any:
        """The function's result, taken when the first signal or the end is due."""
        ticket, self._pending_result = self._pending_result, None
        return result if ticket is None else ticket.take_result()

    async def _pass_work_time(self, seconds: float, timed: Timed) -> None:
        """Let the time pass that this much work takes at the speed of these moments; steps end on the way."""
        for step, spent in timed:
            step.ended = self.machine.speed_curve.finish_time(self.now(), spent) if spent > 0 else self.now()
        timed.clear()
        if seconds <= 0:
            return
        end = self.machine.speed_curve.finish_time(self.now(), seconds)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        timer = None if math.isinf(end) else loop.call_at(end, _set_done, done)
        try:
            await done
        finally:
            if timer is not None:
                timer.cancel()


class _UnpacedExecution:
    """A pace that never holds up: in virtual time the gates were passed before the function begins."""

    holds = False

    def enter(self, step: int) -> None:
        pass

    def leave(self, step: int) -> None:
        pass


class _InstantSend:
    """Awaitable, and done."""

    def __await__(self) -> Any:
        return iter(())


def _set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_FREE = _UnpacedExecution()
_NOTHING = _InstantSend()
