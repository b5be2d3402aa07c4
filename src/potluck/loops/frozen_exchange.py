"""How frozen weights reach a device that could not build them itself: once, before its first turn or stage.

    device                            coordinator
    FrozenPull (layers) ────────────▶
           ◀───────────────────────── FrozenSegment

A request is repeated until it is answered. A fetch belongs to the device and not to a turn: a turn that is cancelled
meanwhile does not make it start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Protocol

from potluck.errors import RunError
from potluck.journal import Span
from potluck.loops.messages import FrozenPull, FrozenSegment
from potluck.loops.node import COORDINATOR, Latch, Node, answered
from potluck.loops.run_progress import RunProgress
from potluck.payload import Payload

__all__ = ["FrozenBackend", "FrozenFetcher", "FrozenSender"]


class FrozenBackend(Protocol):
    """The frozen weights of a model (`potluck.model.frozen_weights`)."""

    @property
    def layer_count(self) -> int: ...

    def layers_needed(self, first: int, last: int) -> set[int]:
        """The layers whose frozen weights these layers use: themselves, and owners of shared ones."""

    def message_ranges(self, layers: Iterable[int]) -> list[tuple[int, int]]:
        """These layers as ranges that fit into a message each."""

    def range_bytes(self, first: int, last: int) -> int: ...

    def pack_layers(self, first: int, last: int) -> Payload: ...

    def layers_refusal(self, first: int, last: int, payload: Payload) -> str | None: ...

    def load_layers(self, first: int, last: int, payload: Payload) -> None: ...


class FrozenSender:
    """The coordinator's side: answers requests, each once at a time."""

    def __init__(self, node: Node, backend: FrozenBackend, progress: RunProgress) -> None:
        self._node = node
        self._backend = backend
        self._progress = progress
        self._sends: dict[tuple[str, int], Awaitable[None]] = {}

    def is_valid_request(self, pull: FrozenPull) -> bool:
        """Whether a device may ask for these layers: they exist and fit into one message."""
        first, last = pull.first, pull.last
        return 0 <= first <= last < self._backend.layer_count and self._backend.message_ranges(
            range(first, last + 1)
        ) == [(first, last)]

    def answer_request(self, sender: str, pull: FrozenPull) -> None:
        """Send the layers that a device asks for, unless they are on their way; nonsense is ignored."""
        if not self.is_valid_request(pull):
            return
        first, last = pull.first, pull.last
        sending = self._sends.get((sender, first))
        if isinstance(sending, asyncio.Future) and not sending.done():
            return
        segment = FrozenSegment(self._backend.pack_layers(first, last), first=first, last=last)
        self._progress.bytes_sent += segment.nbytes
        self._sends[sender, first] = self._node.send(sender, segment)

    def is_sending_to(self, receiver: str) -> bool:
        """Whether frozen weights are on their way to a device."""
        return any(
            name == receiver and isinstance(sending, asyncio.Future) and not sending.done()
            for (name, _), sending in self._sends.items()
        )


class FrozenFetcher:
    """A device's side; `missing` are the layers whose frozen weights it lacks, and shrinks as they arrive."""

    def __init__(self, node: Node, backend: FrozenBackend, missing: set[int], retry_s: float) -> None:
        self._node = node
        self._backend = backend
        self._missing = missing
        self._retry_s = retry_s
        self._arrived: dict[tuple[int, int], Latch] = {}
        self._fetches: dict[tuple[int, int], asyncio.Task[None]] = {}

    @property
    def is_complete(self) -> bool:
        return not self._missing

    async def fetch_all(self) -> None:
        """Return once the frozen weights of all layers are here."""
        await self.fetch_layers(0, self._backend.layer_count - 1)

    async def fetch_layers(self, first: int, last: int) -> None:
        """Return once the frozen weights that the layers `first` to `last` use are here."""
        for wanted in self._backend.message_ranges(self._missing & self._backend.layers_needed(first, last)):
            if wanted not in self._fetches:
                self._fetches[wanted] = asyncio.get_running_loop().create_task(self._fetch_range(wanted))
            await asyncio.shield(self._fetches[wanted])

    def receive_segment(self, segment: FrozenSegment) -> None:
        """Load layers that were asked for, once; RunError if they cannot be used."""
        wanted = (segment.first, segment.last)
        latch = self._arrived.get(wanted)
        if latch is None or latch.is_open:
            return
        reason = self._backend.layers_refusal(*wanted, segment.payload)
        if reason is not None:
            raise RunError(f"{self._node.name} cannot use the coordinator's frozen weights: {reason}")
        self._backend.load_layers(*wanted, segment.payload)
        latch.open()

    def cancel(self) -> None:
        """Give up what is still being fetched."""
        for fetch in self._fetches.values():
            fetch.cancel()
        self._fetches.clear()

    async def _fetch_range(self, wanted: tuple[int, int]) -> None:
        node, began, latch = self._node, self._node.now(), Latch()
        self._arrived[wanted] = latch
        await answered(node, COORDINATOR, FrozenPull(*wanted), latch, self._retry_s)
        fields = {"bytes": self._backend.range_bytes(*wanted), "frozen": list(wanted)}
        node.record(Span(node.name, "pull", began, node.now(), fields))
        self._missing.difference_update(range(wanted[0], wanted[1] + 1))
        del self._fetches[wanted]
