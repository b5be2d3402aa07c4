"""A node for tests: plays scripted messages on a manual clock; records all that is sent, computed and journalled.

    node = RecordingNode("coordinator")
    node.start(RoundsCoordinator(node, context).main())
    await node.deliver("pi", Joined("pi", 1))      # returns once nothing more happens at this instant
    await node.advance(5.0)                        # time moves only here and while the loop computes
    assert node.sent_to("pi") == [...]

A test is an `async def` under `@on_virtual_time`. Sends complete at once unless `holds_sends` is set.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import numpy as np

from potluck import seeds
from potluck.journal import Instant, JournalRecord
from potluck.loops.messages import Message
from potluck.loops.node import Envelope, MeasuredTransfer, Work
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model.metrics import TaskMetrics
from potluck.worlds.simulated.virtual_clock import run_virtual_time

__all__ = ["FixedPolicy", "RecordingNode", "Sent", "on_virtual_time"]

M = TypeVar("M", bound=Message)
Test = Callable[..., Coroutine[Any, Any, None]]

_CHAINED_TIMERS = 10  # waits of no time that may follow each other at one instant


def on_virtual_time(test: Test) -> Callable[..., None]:
    """Run an asynchronous test on a clock that only moves when the test lets it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        run_virtual_time(test(*args, **kwargs))

    return run


class Sent(NamedTuple):
    """A message that left the node."""

    at: float
    to: str
    message: Message


class _FreePace:
    """Nothing to wait for: the node passes all gates before it calls the function."""

    holds = False

    def enter(self, step: int) -> None:
        pass

    def leave(self, step: int) -> None:
        pass


class RecordingNode:
    """One node without a world around it."""

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.name = name
        self.incarnation = incarnation
        self.sent: list[Sent] = []
        self.computed: list[Work] = []
        self.records: list[JournalRecord] = []
        self.holds_sends = False
        self.held: list[asyncio.Future[None]] = []  # sends that are still in flight
        self._inbox: deque[Envelope] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._main: asyncio.Task[Any] | None = None

    # --- the test's side -------------------------------------------------------------------------------------------

    def start(self, main: Coroutine[Any, Any, Any]) -> None:
        self._main = asyncio.get_running_loop().create_task(main)

    async def advance(self, seconds: float = 0.0) -> None:
        """Let time pass; all that happens until then has happened when this returns."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        for _ in range(_CHAINED_TIMERS):
            reached = loop.create_future()
            loop.call_at(ends_at, reached.set_result, None)
            await reached
        if self._main is not None and self._main.done() and self._main.exception() is not None:
            raise AssertionError("the loop failed") from self._main.exception()

    async def deliver(
        self, sender: str, *messages: Message, incarnation: int = 1, transfer: MeasuredTransfer | None = None
    ) -> None:
        """Let messages arrive, and the loop handle them."""
        self._inbox.extend(Envelope(sender, incarnation, message, transfer) for message in messages)
        self._wake()
        await self.advance()

    def queue(self, sender: str, *messages: Message, incarnation: int = 1) -> None:
        """Put messages into the mailbox without waiting for them to be handled."""
        self._inbox.extend(Envelope(sender, incarnation, message) for message in messages)
        self._wake()

    @property
    def has_started(self) -> bool:
        return self._main is not None

    @property
    def has_ended(self) -> bool:
        return self._main is not None and self._main.done()

    @property
    def result(self) -> Any:
        """What the loop returned; None while it runs."""
        return self._main.result() if self._main is not None and self._main.done() else None

    def sent_to(self, to: str) -> list[Message]:
        return [sent.message for sent in self.sent if sent.to == to]

    def sent_of(self, kind: type[M], to: str | None = None) -> list[M]:
        """The messages of a kind, to a device or to anyone."""
        return [sent.message for sent in self.sent if isinstance(sent.message, kind) and (to is None or sent.to == to)]

    def times_of(self, kind: type[Message], to: str | None = None) -> list[float]:
        """When messages of a kind were sent."""
        return [sent.at for sent in self.sent if isinstance(sent.message, kind) and (to is None or sent.to == to)]

    def events(self, name: str) -> list[Instant]:
        return [record for record in self.records if isinstance(record, Instant) and record.name == name]

    # --- the loop's side: what every Node does ---------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def send(self, to: str, message: Message) -> Awaitable[None]:
        self.sent.append(Sent(self.now(), to, message))
        sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.holds_sends and message.bulky:
            self.held.append(sending)
        else:
            sending.set_result(None)
        return sending

    async def receive(self, until: float | None = None) -> Envelope | None:
        if not self._inbox:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if until is None else loop.call_at(max(until, loop.time()), self._wake)
            await self._waiter
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._inbox.popleft() if self._inbox else None

    async def compute(self, work: Work) -> Any:
        """Take the time of the steps; the function runs once the last gate is open."""
        self.computed.append(work)
        last_gate = max((index for index, step in enumerate(work.steps) if step.gate is not None), default=0)
        result = None
        for index, step in enumerate(work.steps):
            if step.gate is not None:
                await step.gate.wait()
            if index == last_gate and work.run is not None:
                result = work.run(_FreePace())
            step.began = self.now()
            await asyncio.sleep(step.seconds() if callable(step.seconds) else step.seconds)
            step.ended = self.now()
            if step.signal is not None:
                step.signal.open()
        return result

    def speed(self) -> float:
        return 1.0

    def rng(self, *name: object) -> np.random.Generator:
        return seeds.child_generator(0, self.name, *name)

    def record(self, record: JournalRecord) -> None:
        self.records.append(record)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class FixedPolicy:
    """Stops after some rounds and saves every so many."""

    metrics = TaskMetrics()

    def __init__(self, rounds: int = 100, checkpoint: int = 0) -> None:
        self._rounds = rounds
        self._checkpoint = checkpoint
        self.saved_rounds: list[int] = []

    def stop_outcome(self, progress: RunProgress, now: float) -> RunOutcome | None:
        return RunOutcome("done", f"{self._rounds} rounds") if progress.round >= self._rounds else None

    def interrupt_outcome(self) -> RunOutcome | None:
        return None

    def check_may_commit(self) -> None:
        pass

    def evaluation_due(self, round: int) -> bool:
        return False

    def checkpoint_due(self, round: int) -> bool:
        return bool(self._checkpoint) and round % self._checkpoint == 0

    def save_checkpoint(self, progress: RunProgress, now: float) -> None:
        self.saved_rounds.append(progress.round)

    def report_progress(self, progress: RunProgress, now: float) -> None:
        pass

    def keep_best(self, progress: RunProgress) -> None:
        pass

    # --- of a pipeline ---------------------------------------------------------------------------------------------

    def next_drain_batch(self, batch: int) -> int:
        return self._rounds

    def evaluate_model(self, weights: Any) -> dict[str, float]:
        return {}

    def save_model(self, weights: Any, progress: RunProgress, now: float) -> None:
        self.save_checkpoint(progress, now)
