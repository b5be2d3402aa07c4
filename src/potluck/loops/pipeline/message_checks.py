"""What the nodes of a pipeline say to each other, looked at before it is used; the numbers are the mathematics' own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potluck.loops.pipeline.messages import Replica
from potluck.loops.pipeline.stage_backend import StageBackend, join_payload
from potluck.payload import Payload

__all__ = ["MAX_REASON_CHARS", "join_copy", "layers_refusal", "replica_refusal"]

MAX_REASON_CHARS = 500  # characters of a reason that a peer gives


def layers_refusal(first: int, last: int, layers: int) -> str | None:
    """Why these are no layers of a model."""
    return None if 0 <= first <= last < layers else f"it speaks of layers {first} to {last} of a model with {layers}"


def replica_refusal(replica: Replica, layers: int) -> str | None:
    """Why a piece of a copy has no place anywhere."""
    if not 0 <= replica.place < replica.count or replica.version < 0:
        return f"it sent piece {replica.place} of {replica.count} of version {replica.version}"
    return layers_refusal(replica.first, replica.last, layers)


def join_copy(mathematics: StageBackend, replica: Replica, pieces: Sequence[Payload]) -> Payload | str:
    """The numbers of a copy from all of its pieces, or why they are none."""
    if len({len(piece.arrays) for piece in pieces}) > 1 or not all(_is_flat(piece) for piece in pieces):
        return "the pieces of its copy do not fit each other"
    payload = join_payload(pieces)
    return mathematics.weights_refusal(replica.first, replica.last, payload, replica.step) or payload


def _is_flat(piece: Payload) -> bool:
    return all(isinstance(array, np.ndarray) and array.ndim == 1 for array in piece.arrays)
