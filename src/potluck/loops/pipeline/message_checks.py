"""Checks messages of other nodes before they are used; payloads are checked by the backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.stage_backend import StageBackend, join_payload
from potluck.payload import Payload

__all__ = ["MAX_REASON_CHARS", "join_copy", "layers_refusal", "replica_refusal"]

MAX_REASON_CHARS = 500  # of a reason that a peer gives
_MAX_COPY_CHUNKS = 1 << 20


def layers_refusal(first: int, last: int, layers: int) -> str | None:
    """Why these cannot be layers of a model."""
    return None if 0 <= first <= last < layers else f"it speaks of layers {first} to {last} of a model with {layers}"


def replica_refusal(replica: Replica, layers: int) -> str | None:
    """Why a chunk of a copy cannot be valid."""
    if not 0 <= replica.place < replica.count <= _MAX_COPY_CHUNKS or replica.version < 0:
        return f"it sent chunk {replica.place} of {replica.count} of version {replica.version}"
    return layers_refusal(replica.first, replica.last, layers)


def join_copy(backend: StageBackend, replica: Replica, chunks: Sequence[Payload]) -> Payload | str:
    """The payload of a copy from all of its chunks, or why it cannot be used."""
    if len({len(chunk.arrays) for chunk in chunks}) > 1 or not all(_is_flat(chunk) for chunk in chunks):
        return "the chunks of its copy do not fit each other"
    payload = join_payload(chunks)
    return backend.weights_refusal(replica.first, replica.last, payload, replica.step) or payload


def _is_flat(chunk: Payload) -> bool:
    return all(isinstance(array, np.ndarray) and array.ndim == 1 for array in chunk.arrays)
