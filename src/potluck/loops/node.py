"""The interface between a loop and its world: all that loop code may know of time, bytes and processors.

Loop code is ordinary `async def` and speaks to its Node and to nothing else: no clock, socket, thread or global
random state of its own. Worlds differ in how they move time and bytes; no loop contains an `if simulated`.

    now · sleep · send · receive · compute · speed · rng · record      and membership events, which arrive as messages
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from potluck.fleet.fleet_devices import COORDINATOR
from potluck.journal.journal_records import JournalRecord
from potluck.loops.messages import Message

__all__ = [
    "COMPLETED",
    "COORDINATOR",
    "IDLE_CHECK_S",
    "Envelope",
    "Latch",
    "MeasuredTransfer",
    "Node",
    "Pace",
    "Step",
    "Work",
    "answered",
]


class MeasuredTransfer(NamedTuple):
    """How long the link was busy with a message, by the receiver's clock.

    The time begins when the message begins to arrive, or when the previous one of that sender is complete if that is
    later, and ends with the last byte. It includes the overhead of the message and leaves out its latency.
    """

    nbytes: int
    seconds: float
    overhead_s: float = 0.0  # of these, what the fleet file adds to a message; 0 where links are not emulated


class Envelope(NamedTuple):
    """A message and its sender. A device that restarts returns in a new incarnation."""

    sender: str
    incarnation: int
    message: Message
    transfer: MeasuredTransfer | None = None  # of a message with a payload


class Node(Protocol):
    """One device or the coordinator, as its loop sees it."""

    name: str
    incarnation: int

    def now(self) -> float:
        """Seconds since the run began."""

    async def sleep(self, seconds: float) -> None: ...

    def send(self, to: str, message: Message) -> Awaitable[None]:
        """Send a message. Await the result for back-pressure: it is done when the link has taken the last byte.

        That says nothing about arrival: messages get lost and peers die. What must arrive is acknowledged, and repeated
        until it is.
        """

    async def receive(self, until: float | None = None) -> Envelope | None:
        """The next message in order of arrival; None once `until` has passed."""

    async def compute(self, work: Work) -> Any:
        """Run the work on this device's processor, one at a time; the result of its function."""

    def speed(self) -> float:
        """This device's current speed as a fraction of its nominal speed."""

    def rng(self, *name: object) -> np.random.Generator:
        """A generator that depends only on the run's seed, this node's name and `name`."""

    def record(self, record: JournalRecord) -> None:
        """Write to the run's journal."""


class Latch:
    """An event that happens once: a segment has arrived (a gate), a gradient is ready (a signal)."""

    __slots__ = ("_callbacks", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._callbacks: list[Callable[[], object]] = []

    def open(self) -> None:
        if self.is_open:
            return
        self.is_open = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def then(self, callback: Callable[[], object]) -> None:
        """Call back once the latch opens, or now if it is open."""
        if self.is_open:
            callback()
        else:
            self._callbacks.append(callback)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for at most `seconds`; whether the latch is open."""
        if self.is_open:
            return True
        loop = asyncio.get_running_loop()
        waiting = loop.create_future()
        self.then(lambda: _set(waiting))
        timer = None if seconds is None else loop.call_later(seconds, _set, waiting)
        try:
            await waiting
        finally:
            if timer is not None:
                timer.cancel()
        return self.is_open


def _set(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Step:
    """A step of work that takes `seconds` on this device at its nominal speed.

    Where the cost is only known when the step begins, `seconds` is a function that returns it.
    """

    __slots__ = ("began", "ended", "gate", "label", "seconds", "signal", "timed")

    def __init__(
        self,
        seconds: float | Callable[[], float],
        gate: Latch | None = None,
        signal: Latch | None = None,
        label: str = "",
        timed: bool = False,
    ) -> None:
        self.seconds = seconds
        self.gate = gate  # waited for before the step begins
        self.signal = signal  # opened when the step is done
        self.label = label
        self.timed = timed  # whether the world sets `began` and `ended`
        self.began: float | None = None  # stays None if the work's function passed over the step
        self.ended = 0.0


class Pace(Protocol):
    """What a work's function calls while it runs, so that real execution waits for gates and fires signals."""

    holds: bool  # False if all gates were open and all costs known before the function began: no need to call

    def enter(self, step: int) -> None:
        """Wait until the step's gate is open; determine its cost."""

    def leave(self, step: int) -> None:
        """Fire the step's signal."""


@dataclass(slots=True)
class Work:
    """Ordered steps, and the function that executes them (None where only time is modelled)."""

    steps: Sequence[Step]
    run: Callable[[Pace], Any] | None = None
    label: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


IDLE_CHECK_S = 1e-6  # of work that only shows that a device's processor takes any


class _CompletedAwaitable:
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


COMPLETED: Awaitable[None] = _CompletedAwaitable()  # what `send` returns where there is nothing to wait for


async def answered(node: Node, to: str, request: Message, reply: Latch, retry_s: float, sent: bool = False) -> None:
    """Send a request until its answer arrives, with growing pauses; `sent` if it was sent once already."""
    pause = retry_s
    while not reply.is_open:
        if not sent:
            await node.send(to, request)
        sent = False
        await reply.wait(pause)
        pause = min(2 * pause, 60.0)
