"""Putting a stage's layers together from what others hold."""

from __future__ import annotations

from typing import Any

from potluck.journal import Span
from potluck.loops.node import Latch, answered
from potluck.loops.pipeline.layer_sources import LayerOrigin
from potluck.loops.pipeline.messages import Assign, Fetch, Piece
from potluck.loops.pipeline.pipeline_stage import StageContext
from potluck.payload import Payload

__all__ = ["LayerAssembly"]


class LayerAssembly:
    """The pieces of one device's layers, some at hand and some on their way."""

    def __init__(self, shop: StageContext, assign: Assign) -> None:
        self._context = shop
        self._assign = assign
        self._received: dict[int, tuple[int, int, Payload]] = {}
        self._latches = {origin.first: Latch() for origin in assign.origins}

    @property
    def remote_sources(self) -> list[LayerOrigin]:
        """What must come from others."""
        return [origin for origin in self._assign.origins if origin.device != self._context.node.name]

    def receive_layers(self, sender: str, piece: Piece) -> str | None:
        """Take a piece that was asked for, once; gives back why it cannot be used, if so."""
        origin = next((origin for origin in self.remote_sources if origin.first == piece.first), None)
        if origin is None or origin.device != sender or self._latches[piece.first].is_open:
            return None
        if (piece.last, piece.version) != (origin.last, origin.version):
            return f"asked for layers {origin.first} to {origin.last}, it sent {piece.first} to {piece.last}"
        reason = self._context.backend.weights_refusal(piece.first, piece.last, piece.payload)
        if reason is None:
            self._received[piece.first] = (piece.first, piece.last, piece.payload)
            self._latches[piece.first].open()
        return reason

    def load_local(self) -> bool:
        """Take what is here already; whether all of it is."""
        for origin in self._assign.origins:
            if origin.device == self._context.node.name:
                numbers = self._context.version_store.find_covering(origin.version, origin.first, origin.last)
                if numbers is None:
                    return False
                payload = self._context.backend.pack_layers(numbers, origin.first, origin.last)
                self._received[origin.first] = (origin.first, origin.last, payload)
        return True

    async def fetch_layers(self, origin: LayerOrigin) -> None:
        """Ask one giver until its piece is here."""
        node, began = self._context.node, self._context.node.now()
        request = Fetch(self._assign.term, origin.first, origin.last, origin.version)
        await answered(node, origin.device, request, self._latches[origin.first], float(self._context.settings.retry))
        fields = {"from": origin.device, "layers": [origin.first, origin.last], "version": origin.version}
        node.record(Span(node.name, "fetch", began, node.now(), fields))

    def assembled_weights(self) -> Any:
        """The layers, once all pieces are here."""
        first, last = min(self._received), max(last for _, last, _ in self._received.values())
        return self._context.backend.join_layers(first, last, list(self._received.values()))
