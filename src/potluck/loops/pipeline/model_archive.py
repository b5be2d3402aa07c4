"""The coordinator's copy of the whole model: what the run began with, checkpoints, and copies sent to the centre."""

from __future__ import annotations

from typing import Any

from potluck.loops.pipeline.message_checks import join_copy
from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.stage_backend import StageBackend
from potluck.loops.pipeline.version_store import VersionStore
from potluck.payload import Payload

__all__ = ["ModelArchive"]


class ModelArchive:
    """One whole version, and the pieces of newer ones that are not whole yet."""

    def __init__(self, mathematics: StageBackend, layers: int, version: int, numbers: Any) -> None:
        self._backend = mathematics
        self._layers = layers
        self.version = version
        self.made_in_term = 0
        self.weights = numbers
        self._partial_versions: dict[int, dict[int, tuple[int, int, Payload]]] = {}  # by version and first layer
        self._incoming = VersionStore("")

    def add_layers(self, version: int, made: int, first: int, last: int, payload: Payload) -> bool:
        """Take in some layers; whether the version is whole with them and newer than the one that was here."""
        if version < self.version or (version == self.version and made == self.made_in_term):
            return False
        pieces = self._partial_versions.setdefault(version, {})
        pieces[first] = (first, last, payload)
        if not _covers_all_layers([(begin, end) for begin, end, _ in pieces.values()], self._layers):
            return False
        self.weights = self._backend.join_layers(0, self._layers - 1, list(pieces.values()))
        self.version, self.made_in_term = version, made
        self._partial_versions = {later: kept for later, kept in self._partial_versions.items() if later > version}
        return True

    def receive_copy(self, sender: str, replica: Replica) -> bool | str | None:
        """Take in a piece of a copy; None until the copy is whole, then whether the model is, or why it is no copy."""
        pieces = self._incoming.receive_chunk(sender, replica)
        if pieces is None:
            return None
        payload = join_copy(self._backend, replica, pieces)
        if isinstance(payload, str):
            return payload
        return self.add_layers(replica.version, replica.made, replica.first, replica.last, payload)

    def weights_refusal(self, first: int, last: int, payload: Payload) -> str | None:
        """Why these cannot be the numbers of some layers."""
        return self._backend.weights_refusal(first, last, payload)

    @property
    def evaluation_batches(self) -> int:
        """Held-out batches that the stages can be measured on."""
        return self._backend.evaluation_batches

    @property
    def evaluation_samples(self) -> int:
        """How many samples they have together."""
        return sum(self._backend.evaluation_batch_size(number) for number in range(self.evaluation_batches))

    def pack_layers(self, first: int, last: int) -> Payload:
        return self._backend.pack_layers(self.weights, first, last)

    def begin_term(self) -> None:
        """Pieces of different terms do not fit together."""
        self._partial_versions.clear()
        self._incoming.drop_incoming()


def _covers_all_layers(pieces: list[tuple[int, int]], layers: int) -> bool:
    """Whether these stretches of layers, side by side, are all layers."""
    pieces.sort()
    begins, ends = [begin for begin, _ in pieces], [end + 1 for _, end in pieces]
    return [*begins, layers] == [0, *ends]
