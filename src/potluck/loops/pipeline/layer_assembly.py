"""Assembles a stage's layers from its own copies and those of other devices."""

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
    """One device's layers of one assignment: some at hand, some being fetched."""

    def __init__(self, context: StageContext, assign: Assign) -> None:
        self._context = context
        self._assign = assign
        self._received: dict[int, tuple[int, int, Payload]] = {}
        self._latches = {origin.first: Latch() for origin in assign.origins}

    @property
    def remote_sources(self) -> list[LayerOrigin]:
        """The origins on other devices."""
        return [origin for origin in self._assign.origins if origin.device != self._context.node.name]

    def receive_layers(self, sender: str, piece: Piece) -> str | None:
        """Store layers that were asked for, once; why they cannot be used, if so."""
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
        """Load the layers that this device should hold; False if it does not."""
        for origin in self._assign.origins:
            if origin.device == self._context.node.name:
                weights = self._context.version_store.find_covering(origin.version, origin.first, origin.last)
                if weights is None:
                    return False
                payload = self._context.backend.pack_layers(weights, origin.first, origin.last)
                self._received[origin.first] = (origin.first, origin.last, payload)
        return True

    async def fetch_layers(self, origin: LayerOrigin) -> None:
        """Ask one device until its layers arrive."""
        node, began = self._context.node, self._context.node.now()
        request = Fetch(self._assign.term, origin.first, origin.last, origin.version)
        await answered(node, origin.device, request, self._latches[origin.first], float(self._context.settings.retry))
        fields = {"from": origin.device, "layers": [origin.first, origin.last], "version": origin.version}
        node.record(Span(node.name, "fetch", began, node.now(), fields))

    @property
    def layer_range(self) -> tuple[int, int]:
        """The first and the last of the layers."""
        origins = self._assign.origins
        return min(origin.first for origin in origins), max(origin.last for origin in origins)

    def assembled_weights(self) -> Any:
        """The weights of all layers, once they have arrived."""
        return self._context.backend.join_layers(*self.layer_range, list(self._received.values()))
