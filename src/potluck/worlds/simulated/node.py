"""A node of the simulated world: one life of one device, or the coordinator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.journal import Record
from potluck.loops.messages import Message
from potluck.loops.node import Envelope, Step, Work
from potluck.worlds.simulated.pool import Ticket

if TYPE_CHECKING:
    from potluck.worlds.simulated.site import Site
    from potluck.worlds.simulated.world import World

__all__ = ["SimulatedNode"]

Timed = list[tuple[Step, float]]  # steps that are asked when they ended, and the work until then


class SimulatedNode:
    """Speaks the seam's words in virtual time."""

    __slots__ = ("_busy", "_mailbox", "_ticket", "_waiter", "_world", "incarnation", "name", "site", "task")

    def __init__(self, world: World, site: Site, incarnation: int) -> None:
        self._world = world
        self.site = site
        self.name = site.name
        self.incarnation = incarnation
        self.task: asyncio.Task[None] | None = None
        self._mailbox: deque[Envelope] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._busy: asyncio.Lock | None = None
        self._ticket: Ticket | None = None

    def now(self) -> float:
        return self._world.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        sent = self._world.transmit(self, to, message)
        return _NOTHING if sent is None else sent

    async def receive(self, until: float | None = None) -> Envelope | None:
        if not self._mailbox:
            await self._wait(until)
        return self._mailbox.popleft() if self._mailbox else None

    async def compute(self, work: Work) -> Any:
        """Walk through the steps in virtual time; the real function starts behind the last gate."""
        if not work.steps:
            return None if work.run is None else work.run(_FREE)
        if self._busy is None:
            self._busy = asyncio.Lock()
        async with self._busy:
            try:
                return await self._walk(work)
            finally:
                self._drop()

    def speed(self) -> float:
        return self.site.curve.level(self.now())

    def rng(self, *name: object) -> np.random.Generator:
        return self._world.rng(self.name, *name)

    def record(self, record: Record) -> None:
        self._world.journal.write(record)

    def deliver(self, envelope: Envelope) -> None:
        self._mailbox.append(envelope)
        self._wake()

    def end(self) -> None:
        """This life is over."""
        self._drop()
        if self.task is not None:
            self.task.cancel()

    def _drop(self) -> None:
        """Whatever is still being worked out is not needed any more."""
        if self._ticket is not None:
            self._ticket.drop()
            self._ticket = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self, until: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if until is None else loop.call_at(max(until, loop.time()), self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def _walk(self, work: Work) -> Any:
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
                    await self._spend(unspent, timed)
                    unspent = 0.0
                    await step.gate.wait()
            seconds = step.seconds
            if callable(seconds):
                unsettled -= 1
                await self._spend(unspent, timed)
                unspent, seconds = 0.0, seconds()
            if unsettled == 0 and not begun:
                begun = True
                self._begin(work, place, unspent + seconds)
            unspent += seconds
            if step.timed:
                timed.append((step, unspent))
            if step.signal is not None or place == len(work.steps) - 1:
                await self._spend(unspent, timed)
                unspent = 0.0
                if begun:
                    result = self._collect(result)
                if step.signal is not None:
                    step.signal.open()
        return result

    def _begin(self, work: Work, place: int, pending: float) -> None:
        run = work.run
        if run is None:
            return
        later = (step.seconds for step in work.steps[place + 1 :])
        seconds = pending + sum(cost for cost in later if not callable(cost))
        due = self.site.curve.finish(self.now(), seconds)
        self._ticket = self._world.pool.submit(lambda: run(_FREE), due)

    def _collect(self, result: Any) -> Any:
        """The function's result, taken when the first signal or the end is due."""
        ticket, self._ticket = self._ticket, None
        return result if ticket is None else ticket.result()

    async def _spend(self, seconds: float, timed: Timed) -> None:
        """Let the time pass that this much work takes at the speed of these moments; steps end on the way."""
        for step, spent in timed:
            step.ended = self.site.curve.finish(self.now(), spent) if spent > 0 else self.now()
        timed.clear()
        if seconds <= 0:
            return
        end = self.site.curve.finish(self.now(), seconds)
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        timer = None if math.isinf(end) else loop.call_at(end, _set, done)
        try:
            await done
        finally:
            if timer is not None:
                timer.cancel()


class _Free:
    """A pace that never holds up: in virtual time the gates were passed before the function begins."""

    holds = False

    def enter(self, step: int) -> None:
        pass

    def leave(self, step: int) -> None:
        pass


class _Nothing:
    """Awaitable, and done."""

    def __await__(self) -> Any:
        return iter(())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_FREE = _Free()
_NOTHING = _Nothing()
