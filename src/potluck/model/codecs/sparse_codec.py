"""Some entries of a vector and where they belong; what the sparse codecs have in common.

    vector + what was left out before ──▶ choose ──▶ (values, places) on the wire
                         ▲                   └─────▶ the rest
                         └──── next round ──────────────┘

On the wire a vector is two arrays, values and places, or one array if it is sent whole.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs import index_coding as placing
from potluck.model.codecs import value_coding as valuing
from potluck.model.codecs.array_checks import array_refusal, count_refusal
from potluck.model.codecs.codec_interface import WHOLE, Codec
from potluck.model.codecs.codec_state import AccumulatedVector, CodecState
from potluck.model.codecs.dense_codec import DenseCodec
from potluck.payload import Payload
from potluck.settings import doc

__all__ = ["Ratio", "Share", "SparseCodec"]

Ratio = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class SparseCodec(Codec, frozen=True, kw_only=True):
    """Sends some entries; with error feedback the others are added to the next vector, so that nothing is lost."""

    error_feedback: Annotated[bool, doc("Add the entries that were not sent to the next update.")] = True
    values: Annotated[valuing.Form, doc("Format of the values: 32 or 16 bits, or signs with one common size.")] = "f32"

    def __post_init__(self) -> None:
        if self.values == "sign" and not self.error_feedback:
            raise ValueError('values = "sign" needs error_feedback = true, which makes up for what signs leave out')

    def choose_indices(self, strengths: Tensor, memory: CodecState | None, start: int) -> Tensor | None:
        """The indices to send, ascending, by the sizes of all entries; None: send everything."""
        raise NotImplementedError

    @property
    def expected_ratio(self) -> float:
        """The share of the entries that planning reckons with."""
        raise NotImplementedError

    @property
    def residual_momentum(self) -> float:
        return 0.0

    def new_state(self) -> CodecState | None:
        return CodecState()

    def encode(self, vector: Tensor, memory: CodecState | None = None, at: slice = WHOLE) -> Payload:
        vector = vector.detach()
        carried = self._add_residual(vector, memory, at)
        strengths = carried.total.abs()
        if len(vector) and not bool(strengths.max().isfinite()):
            return DenseCodec().encode(vector)  # not ours to judge: if it is the vector that is bad, it is refused
        places = self.choose_indices(strengths, memory, at.start or 0)
        if places is not None and self._sparse_bytes(len(places), len(vector)) >= self._dense_bytes(len(vector)):
            places = None
        packed = self._pack_entries(carried.total, places)
        self._store_unsent(memory, carried, at, places, valuing.unpack_values(packed))
        return _build_payload(packed, places, len(vector))

    def decode(self, payload: Payload, size: int) -> Tensor:
        values = valuing.unpack_values(payload.arrays[0])
        if len(payload.arrays) == 1:
            return values
        vector = torch.zeros(size, dtype=values.dtype)
        vector[torch.from_numpy(placing.unpack_indices(payload.arrays[1], len(values), size))] = values
        return vector

    def retract(self, payload: Payload, memory: CodecState | None, at: slice) -> None:
        if memory is not None and self.error_feedback:
            sent = self.decode(payload, at.stop - at.start)
            if bool(sent.isfinite().all()):
                memory.return_to_residual(sent, at)

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return min(self._sparse_bytes(self.entry_count(self.expected_ratio, size), size), self._dense_bytes(size))

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        if why := count_refusal(payload.arrays, 1, 2):
            return why
        values, *places = payload.arrays
        return valuing.values_refusal(values) or _entries_refusal(valuing.value_count(values), places, size)

    @staticmethod
    def entry_count(ratio: float, size: int) -> int:
        """How many entries a ratio stands for: at least one, if there are any."""
        return min(size, max(1, round(ratio * size)))

    def _add_residual(self, vector: Tensor, memory: CodecState | None, at: slice) -> AccumulatedVector:
        if memory is None or not self.error_feedback:
            return AccumulatedVector(vector)
        return memory.add_residual(vector, at, self.residual_momentum)

    def _store_unsent(
        self, memory: CodecState | None, carried: AccumulatedVector, at: slice, places: Tensor | None, sent: Tensor
    ) -> None:
        if memory is None:
            return
        memory.count_sent(compressed=places is not None)
        if self.error_feedback:
            memory.store_residual(carried, at, places, sent)

    def _pack_entries(self, total: Tensor, places: Tensor | None) -> Any:
        return (
            valuing.pack_values(total, self._dense_format)
            if places is None
            else valuing.pack_values(total[places], self.values)
        )

    @property
    def _dense_format(self) -> valuing.Form:
        """Signs stand for entries that are about the same size, and all of them are not."""
        return "f32" if self.values == "sign" else self.values

    def _sparse_bytes(self, count: int, size: int) -> int:
        return valuing.packed_value_bytes(count, self.values) + placing.packed_index_bytes(count, size)

    def _dense_bytes(self, size: int) -> int:
        return valuing.packed_value_bytes(size, self._dense_format)


def _build_payload(packed: Any, places: Tensor | None, size: int) -> Payload:
    arrays = (packed,) if places is None else (packed, placing.pack_indices(places.numpy(), size))
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _entries_refusal(count: int, places: list[Any], size: int) -> str | None:
    """Why so many numbers do not belong at these places, or are not all of them where no places are given."""
    if not places:
        return None if count == size else f"it has {count} values, not {size}"
    if count > size:
        return f"it has {count} values for {size} places"
    packed = places[0]
    return array_refusal(
        packed, "places", (np.uint8,), placing.packed_index_bytes(count, size)
    ) or placing.indices_refusal(packed, count, size)
