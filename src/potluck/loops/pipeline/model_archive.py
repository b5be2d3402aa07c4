"""The coordinator's copy of the whole model: the initial one, checkpoints, and copies that stages send to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from potluck.loops.pipeline.message_checks import join_copy
from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.stage_backend import StageBackend
from potluck.loops.pipeline.version_store import VersionStore
from potluck.payload import Payload

__all__ = ["ModelArchive"]


class ModelArchive:
    """One complete version, and the layers of newer ones that are not complete yet."""

    def __init__(self, backend: StageBackend, layers: int, version: int, weights: Any) -> None:
        self._backend = backend
        self._layers = layers
        self.version = version
        self.made_in_term = 0
        self.weights = weights
        self._partial_versions: dict[int, dict[int, tuple[int, int, Payload]]] = {}  # by version and first layer
        self._incoming = VersionStore("")

    def add_layers(self, version: int, made: int, first: int, last: int, payload: Payload) -> bool:
        """Store some layers; whether they complete a version that is newer than the archived one."""
        if version < self.version or (version == self.version and made == self.made_in_term):
            return False
        received = self._partial_versions.setdefault(version, {})
        received[first] = (first, last, payload)
        if not _covers_all_layers([(begin, end) for begin, end, _ in received.values()], self._layers):
            return False
        self.weights = self._backend.join_layers(0, self._layers - 1, list(received.values()))
        self.version, self.made_in_term = version, made
        self._partial_versions = {later: kept for later, kept in self._partial_versions.items() if later > version}
        return True

    def receive_copy(self, sender: str, replica: Replica) -> bool | str | None:
        """Store a chunk of a copy; None until the copy is complete, then whether the model is, or a refusal."""
        chunks = self._incoming.receive_chunk(sender, replica)
        if chunks is None:
            return None
        payload = join_copy(self._backend, replica, chunks)
        if isinstance(payload, str):
            return payload
        return self.add_layers(replica.version, replica.made, replica.first, replica.last, payload)

    def weights_refusal(self, first: int, last: int, payload: Payload) -> str | None:
        """Why these cannot be the weights of some layers."""
        return self._backend.weights_refusal(first, last, payload)

    @property
    def evaluation_batches(self) -> int:
        """How many held-out batches the stages can be evaluated on."""
        return self._backend.evaluation_batches

    @property
    def evaluation_samples(self) -> int:
        """The samples in these batches."""
        return sum(self._backend.evaluation_batch_size(number) for number in range(self.evaluation_batches))

    def metrics_refusal(self, values: Mapping[str, float]) -> str | None:
        """Why these cannot be the values of the task's metrics."""
        return self._backend.metrics_refusal(values)

    def pack_layers(self, first: int, last: int) -> Payload:
        return self._backend.pack_layers(self.weights, first, last)

    def begin_term(self) -> None:
        """Drop incomplete versions; layers of different terms do not fit together."""
        self._partial_versions.clear()
        self._incoming.drop_incoming()


def _covers_all_layers(ranges: list[tuple[int, int]], layers: int) -> bool:
    """Whether these ranges, side by side, make up all layers."""
    ranges.sort()
    begins, ends = [begin for begin, _ in ranges], [end + 1 for _, end in ranges]
    return [*begins, layers] == [0, *ends]
