"""Sends some entries of a vector and their indices; the base of all sparse codecs.

    vector + residual ──▶ choose_indices ──▶ (values, indices) are sent
                ▲                  └───────▶ the rest becomes the residual
                └───── next round ───────────────────┘

A payload is two arrays, values and indices, or one array if all entries are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs import index_coding, value_coding
from potluck.model.codecs.array_checks import array_refusal, count_refusal, vector_norm
from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import AccumulatedVector, CodecState
from potluck.model.codecs.dense_codec import DenseCodec
from potluck.model.codecs.largest_entries import largest_indices
from potluck.payload import Payload
from potluck.settings import doc

if TYPE_CHECKING:
    from potluck.model.model_state import WeightLayout

__all__ = ["Fraction", "Ratio", "SparseCodec"]

Ratio = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class SparseCodec(Codec, frozen=True, kw_only=True):
    """Sends some entries; with error feedback the others are added to the next vector, so nothing is lost."""

    error_feedback: Annotated[bool, doc("Add the entries that were not sent to the next update.")] = True
    values: Annotated[
        value_coding.ValueFormat, doc("Format of the values: 32 or 16 bits, or signs with one common size.")
    ] = "f32"
    momentum: Annotated[
        float,
        msgspec.Meta(ge=0.0, lt=1.0),
        doc("Momentum of the device's own gradients (deep gradient compression); the coordinator's must be 0 then."),
    ] = 0.0
    warmup: Annotated[
        int,
        msgspec.Meta(ge=0),
        doc("Turns of a device over which the fraction sent falls from all entries, each time by the same factor."),
    ] = 0

    def __post_init__(self) -> None:
        if self.momentum and not self.error_feedback:
            raise ValueError("momentum needs error_feedback = true, which keeps what was not sent")
        if self.values == "sign" and not self.error_feedback:
            raise ValueError('values = "sign" needs error_feedback = true, which corrects the error of signs')

    def choose_indices(self, magnitudes: Tensor, state: CodecState | None, start: int) -> Tensor | None:
        """The indices to send, ascending, given the magnitudes of all entries; None to send everything."""
        raise NotImplementedError

    @property
    def expected_ratio(self) -> float:
        """The fraction of the entries that planning assumes to be sent."""
        raise NotImplementedError

    @property
    def final_ratio(self) -> float:
        """The smallest fraction of the entries that is sent after the warm-up."""
        return self.expected_ratio

    def new_state(self, layout: WeightLayout | None = None) -> CodecState | None:
        return CodecState()

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        vector = vector.detach()
        accumulated = self._add_residual(vector, state, entries)
        magnitudes = accumulated.total.abs()
        if len(vector) and not bool(magnitudes.max().isfinite()):
            return DenseCodec().encode(vector)  # not finite: the receiver refuses it if it is the vector itself
        indices = self.choose_indices(magnitudes, state, entries.start or 0)
        if indices is not None and len(indices) < (least := self._warmup_count(state, entries, len(vector))):
            indices = largest_indices(magnitudes, least)
        if indices is not None and self._sparse_bytes(len(indices), len(vector)) >= self._dense_bytes(len(vector)):
            indices = None
        packed = self._pack_entries(accumulated.total, indices)
        self._store_unsent(state, accumulated, entries, indices, value_coding.unpack_values(packed))
        return _build_payload(packed, indices, len(vector))

    def decode(self, payload: Payload, size: int) -> Tensor:
        values = value_coding.unpack_values(payload.arrays[0])
        if len(payload.arrays) == 1:
            return values
        vector = torch.zeros(size, dtype=values.dtype)
        vector[torch.from_numpy(index_coding.unpack_indices(payload.arrays[1], len(values), size))] = values
        return vector

    def norm(self, payload: Payload, size: int) -> float:
        return vector_norm(value_coding.unpack_values(payload.arrays[0]).numpy())

    def retract(self, payload: Payload, state: CodecState | None, entries: slice) -> None:
        if state is not None and self._keeps_residual(state):
            sent = self.decode(payload, entries.stop - entries.start)
            if bool(sent.isfinite().all()):
                state.return_to_residual(sent, entries)

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return min(self._sparse_bytes(self.entry_count(self.expected_ratio, size), size), self._dense_bytes(size))

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        if why := count_refusal(payload.arrays, 1, 2):
            return why
        values, *indices = payload.arrays
        return value_coding.values_refusal(values) or _entries_refusal(value_coding.value_count(values), indices, size)

    @staticmethod
    def entry_count(ratio: float, size: int) -> int:
        """The number of entries that a ratio amounts to: at least one, if there are any."""
        return min(size, max(1, round(ratio * size)))

    def _add_residual(self, vector: Tensor, state: CodecState | None, entries: slice) -> AccumulatedVector:
        if state is None or not self._keeps_residual(state):
            return AccumulatedVector(vector)
        return state.add_residual(vector, entries, self.momentum)

    def _store_unsent(
        self,
        state: CodecState | None,
        accumulated: AccumulatedVector,
        entries: slice,
        indices: Tensor | None,
        sent: Tensor,
    ) -> None:
        if state is None:
            return
        state.count_sent(entries.start or 0, compressed=indices is not None)
        if self._keeps_residual(state):
            state.store_residual(accumulated, entries, indices, sent)

    def _warmup_count(self, state: CodecState | None, entries: slice, size: int) -> int:
        """The number of entries to send at least in this turn of the warm-up; 0 after it."""
        turn = self.warmup if state is None else state.turns.get(entries.start or 0, 0)
        return (
            0 if turn >= self.warmup else self.entry_count(self.final_ratio ** ((turn + 1) / (self.warmup + 1)), size)
        )

    def _keeps_residual(self, state: CodecState) -> bool:
        return self.error_feedback and state.keeps_residual

    def _pack_entries(self, total: Tensor, indices: Tensor | None) -> Any:
        if indices is None:
            return value_coding.pack_values(total, self._dense_format)
        return value_coding.pack_values(total[indices], self.values)

    @property
    def _dense_format(self) -> value_coding.ValueFormat:
        """Signs suit entries of similar magnitude, which all entries together are not."""
        return "f32" if self.values == "sign" else self.values

    def _sparse_bytes(self, count: int, size: int) -> int:
        return value_coding.packed_value_bytes(count, self.values) + index_coding.packed_index_bytes(count, size)

    def _dense_bytes(self, size: int) -> int:
        return value_coding.packed_value_bytes(size, self._dense_format)


def _build_payload(packed: Any, indices: Tensor | None, size: int) -> Payload:
    arrays = (packed,) if indices is None else (packed, index_coding.pack_indices(indices.numpy(), size))
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _entries_refusal(count: int, indices: list[Any], size: int) -> str | None:
    """Why the number of values does not match the indices, or the vector if there are none; None if it does."""
    if not indices:
        return None if count == size else f"it has {count} values, not {size}"
    if count > size:
        return f"it has {count} values for {size} entries"
    packed = indices[0]
    return array_refusal(
        packed, "indices", (np.uint8,), index_coding.packed_index_bytes(count, size)
    ) or index_coding.indices_refusal(packed, count, size)
