"""Putting a stage's layers together from what others hold."""

from __future__ import annotations

from typing import Any

from potluck.journal import Span
from potluck.loops.node import Latch, answered
from potluck.loops.pipeline.messages import Assign, Fetch, Piece
from potluck.loops.pipeline.sourcing import Origin
from potluck.loops.pipeline.stage import Workshop
from potluck.payload import Payload

__all__ = ["Assembly"]


class Assembly:
    """The pieces of one device's layers, some at hand and some on their way."""

    def __init__(self, shop: Workshop, assign: Assign) -> None:
        self._shop = shop
        self._assign = assign
        self._pieces: dict[int, tuple[int, int, Payload]] = {}
        self._latches = {origin.first: Latch() for origin in assign.origins}

    @property
    def wanting(self) -> list[Origin]:
        """What must come from others."""
        return [origin for origin in self._assign.origins if origin.device != self._shop.node.name]

    def take(self, sender: str, piece: Piece) -> str | None:
        """Take a piece that was asked for, once; gives back why it cannot be used, if so."""
        origin = next((origin for origin in self.wanting if origin.first == piece.first), None)
        if origin is None or origin.device != sender or self._latches[piece.first].is_open:
            return None
        if (piece.last, piece.version) != (origin.last, origin.version):
            return f"asked for layers {origin.first} to {origin.last}, it sent {piece.first} to {piece.last}"
        reason = self._shop.mathematics.numbers_refusal(piece.first, piece.last, piece.payload)
        if reason is None:
            self._pieces[piece.first] = (piece.first, piece.last, piece.payload)
            self._latches[piece.first].open()
        return reason

    def from_shelf(self) -> bool:
        """Take what is here already; whether all of it is."""
        for origin in self._assign.origins:
            if origin.device == self._shop.node.name:
                numbers = self._shop.shelf.find(origin.version, origin.first, origin.last)
                if numbers is None:
                    return False
                payload = self._shop.mathematics.pack(numbers, origin.first, origin.last)
                self._pieces[origin.first] = (origin.first, origin.last, payload)
        return True

    async def fetch(self, origin: Origin) -> None:
        """Ask one giver until its piece is here."""
        node, began = self._shop.node, self._shop.node.now()
        request = Fetch(self._assign.term, origin.first, origin.last, origin.version)
        await answered(node, origin.device, request, self._latches[origin.first], float(self._shop.settings.retry))
        fields = {"from": origin.device, "layers": [origin.first, origin.last], "version": origin.version}
        node.record(Span(node.name, "fetch", began, node.now(), fields))

    def numbers(self) -> Any:
        """The layers, once all pieces are here."""
        first, last = min(self._pieces), max(last for _, last, _ in self._pieces.values())
        return self._shop.mathematics.join(first, last, list(self._pieces.values()))
