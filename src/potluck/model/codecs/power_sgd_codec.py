"""Sends a low-rank approximation of every weight matrix (PowerSGD).

    M ──▶ P = orthonormal(M Q), Q = Mᵀ P ──▶ P and Q are sent; M ≈ P Qᵀ
                    ▲              └───────▶ Q is where the next power iteration begins
                    └──── next turn ─────────────┘

Vogels, Karimireddy and Jaggi 2019, arXiv:1905.13727. Every device has its own factors, so the mean of n updates may
have rank n · r. Weights that are no matrix, or a small one, are sent as they are. A payload is three arrays: rows of
(start, rows, columns), the factors column by column, and the other weights. In 8 or 4 bits each column has a scale of
its own, and the error of rounding is part of what is added to the next update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from potluck import seeds
from potluck.model.codecs import block_quantisation, value_coding
from potluck.model.codecs.array_checks import FLOATS, array_refusal, count_refusal
from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import AccumulatedVector, CodecState
from potluck.payload import Payload
from potluck.settings import doc

if TYPE_CHECKING:
    from potluck.model.model_state import WeightLayout

__all__ = ["PowerSgdCodec"]

Matrix = tuple[int, int, int]  # start, rows, columns
_BITS: Mapping[str, block_quantisation.Bits] = {"int8": 8, "int4": 4}
_BLOCK = 256  # weights outside the matrices that have a common scale


class PowerSgdCodec(Codec, frozen=True, kw_only=True, tag="power-sgd"):
    """Every weight matrix as two thin factors; what they leave out is added to the next update."""

    rank: Annotated[int, msgspec.Meta(ge=1, le=1024), doc("Columns of each factor.")] = 2
    values: Annotated[
        Literal["f32", "f16", "int8", "int4"], doc("Format of the values: 32 or 16 bits, or 8 or 4 with scales.")
    ] = "f16"

    def new_state(self, layout: WeightLayout | None = None) -> CodecState | None:
        return CodecState(matrices=() if layout is None else self._find_matrices(layout))

    def _find_matrices(self, layout: WeightLayout) -> tuple[Matrix, ...]:
        """The weight matrices that are larger than their factors; a kernel of a convolution is a row."""
        entries = (entry for entry in layout.params if len(entry.shape) > 1)
        matrices = ((entry.start, entry.shape[0], math.prod(entry.shape[1:])) for entry in entries)
        return tuple(matrix for matrix in matrices if self._is_worth_it(matrix))

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        vector, start = vector.detach().to(torch.float32), entries.start or 0
        keeps = state is not None and state.keeps_residual
        accumulated = state.add_residual(vector, entries, 0.0) if state and keeps else AccumulatedVector(vector)
        total = accumulated.total
        if not bool(total.isfinite().all()):
            total = vector  # the receiver refuses it if it is the vector itself
        segment = slice(start, start + len(vector))
        matrices = [] if state is None else _inside(state.matrices, segment)
        factors = [self._factorize(total, matrix, state, start) for matrix in matrices]
        payload = self._pack(total, matrices, [part for pair in factors for part in pair])
        if state is not None:
            state.count_sent(start, compressed=bool(matrices))
            if keeps and total is accumulated.total and bool(total.isfinite().all()):
                state.store_residual(accumulated, entries, None, self.decode(payload, len(vector)))
        return payload

    def _factorize(self, total: Tensor, matrix: Matrix, state: CodecState | None, start: int) -> tuple[Tensor, Tensor]:
        assert state is not None
        offset, rows, columns = matrix
        values = total[offset : offset + rows * columns].view(rows, columns).double()
        before = state.factors.get(start + offset)
        if before is None:
            rng = seeds.child_generator(0, "power-sgd", start + offset)
            before = torch.from_numpy(rng.standard_normal((columns, self._rank_of(matrix))))
        left = _orthonormal(values @ before.double())
        right = values.T @ left
        if bool(right.isfinite().all()) and bool(right.any()):
            state.factors[start + offset] = right.float()
        return left.float(), right.float()

    def _pack(self, total: Tensor, matrices: list[Matrix], factors: list[Tensor]) -> Payload:
        flat = torch.cat([factor.T.reshape(-1) for factor in factors]) if factors else total[:0]
        others = total[_outside(matrices, len(total))]
        arrays = (
            np.array(matrices, np.int32).reshape(-1),
            self._pack_values(flat, self._column_lengths(matrices)),
            self._pack_values(others, _block_lengths(len(others))),
        )
        return Payload(sum(array.nbytes for array in arrays), arrays)

    def _pack_values(self, values: Tensor, lengths: list[int]) -> Any:
        if bits := _BITS.get(self.values):
            return block_quantisation.pack_blocks(values, lengths, bits)
        return value_coding.pack_values(values, "f32" if self.values == "f32" else "f16")

    def _unpack_values(self, packed: Any, lengths: list[int]) -> Tensor:
        bits = _BITS.get(self.values)
        return block_quantisation.unpack_blocks(packed, lengths, bits) if bits else value_coding.unpack_values(packed)

    def _packed_bytes(self, lengths: list[int]) -> int:
        if bits := _BITS.get(self.values):
            return block_quantisation.packed_block_bytes(lengths, bits)
        return sum(lengths) * (4 if self.values == "f32" else 2)

    def _values_refusal(self, packed: Any, name: str, lengths: list[int]) -> str | None:
        if bits := _BITS.get(self.values):
            return block_quantisation.blocks_refusal(packed, name, lengths, bits)
        return array_refusal(packed, name, FLOATS, sum(lengths))

    def _column_lengths(self, matrices: Iterable[Matrix]) -> list[int]:
        """The lengths of the columns of all factors, in the order in which they are sent."""
        return [length for matrix in matrices for length in matrix[1:] for _ in range(self._rank_of(matrix))]

    def decode(self, payload: Payload, size: int) -> Tensor:
        table, packed, others = payload.arrays
        matrices = _matrices(table)
        factors = self._unpack_values(packed, self._column_lengths(matrices))
        vector, offset, outside = torch.zeros(size), 0, _outside(matrices, size)
        vector[outside] = self._unpack_values(others, _block_lengths(int(outside.sum()))).float()
        for start, rows, columns in matrices:
            rank = self._rank_of((start, rows, columns))
            left = factors[offset : offset + rows * rank].view(rank, rows).T
            offset += rows * rank
            right = factors[offset : offset + columns * rank].view(rank, columns).T
            offset += columns * rank
            vector[start : start + rows * columns] = _outer_sum(left.double(), right.double()).float().reshape(-1)
        return vector

    def retract(self, payload: Payload, state: CodecState | None, entries: slice) -> None:
        if state is not None and state.keeps_residual:
            sent = self.decode(payload, entries.stop - entries.start)
            if bool(sent.isfinite().all()):
                state.return_to_residual(sent, entries)

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        """As if all weights were one square matrix."""
        side = math.ceil(math.sqrt(size))
        factors = self._packed_bytes([side] * (2 * min(self.rank, side)))
        return min(12 + factors, self._packed_bytes(_block_lengths(size)))

    def segment_bytes(self, layout: WeightLayout, first: int, last: int) -> int:
        params, _ = layout.layer_slices(first, last)
        matrices = _inside(self._find_matrices(layout), params)
        others = params.stop - params.start - sum(rows * columns for _, rows, columns in matrices)
        factors = self._packed_bytes(self._column_lengths(matrices))
        return 12 * len(matrices) + factors + self._packed_bytes(_block_lengths(others))

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        if why := count_refusal(payload.arrays, 3):
            return why
        table, packed, others = payload.arrays
        if why := array_refusal(table, "matrices", (np.int32,), table.size):
            return why
        matrices, end = _matrices(table), 0
        if table.size % 3 or table.ndim != 1:
            return "its matrices are not rows of three numbers"
        for start, rows, columns in matrices:
            if start < end or rows < 1 or columns < 1 or start + rows * columns > size:
                return "its matrices overlap or are not within the vector"
            end = start + rows * columns
        inside = sum(rows * columns for _, rows, columns in matrices)
        columns_of_all = self._column_lengths(matrices)
        reason = self._values_refusal(packed, "factors", columns_of_all) or self._values_refusal(
            others, "values", _block_lengths(size - inside)
        )
        return reason or self._overflow_refusal(matrices, self._unpack_values(packed, columns_of_all).numpy())

    def _overflow_refusal(self, matrices: list[Matrix], packed: Any) -> str | None:
        """Why finite factors would give weights that are not finite; None if they do not."""
        largest = float(np.abs(packed).max(initial=0.0))
        ranks = max((self._rank_of(matrix) for matrix in matrices), default=0)
        return "its factors are too large" if ranks * largest * largest > float(np.finfo(np.float32).max) else None

    def _rank_of(self, matrix: Matrix) -> int:
        return min(self.rank, *matrix[1:])

    def _is_worth_it(self, matrix: Matrix) -> bool:
        _, rows, columns = matrix
        return self._rank_of(matrix) * (rows + columns) < rows * columns


def _matrices(table: Any) -> list[Matrix]:
    return [
        (int(start), int(rows), int(columns)) for start, rows, columns in table[: table.size // 3 * 3].reshape(-1, 3)
    ]


def _inside(matrices: Iterable[Matrix], entries: slice) -> list[Matrix]:
    """The matrices that lie within a segment, with their starts in it."""
    return [
        (start - entries.start, rows, columns)
        for start, rows, columns in matrices
        if entries.start <= start and start + rows * columns <= entries.stop
    ]


def _outside(matrices: list[Matrix], size: int) -> Tensor:
    """A mask of the entries that are in no matrix."""
    mask = torch.ones(size, dtype=torch.bool)
    for start, rows, columns in matrices:
        mask[start : start + rows * columns] = False
    return mask


def _block_lengths(count: int) -> list[int]:
    """The lengths of the blocks of weights that are in no matrix."""
    return [min(_BLOCK, count - start) for start in range(0, count, _BLOCK)]


def _outer_sum(left: Tensor, right: Tensor) -> Tensor:
    """left · rightᵀ, column by column: unlike a product of matrices, the same to the last bit on every machine."""
    result = torch.zeros(len(left), len(right), dtype=left.dtype)
    for column in range(left.shape[1]):
        result += left[:, column, None] * right[None, :, column]
    return result


def _orthonormal(columns: Tensor) -> Tensor:
    """The columns made orthonormal one by one (modified Gram-Schmidt); one that depends on the others becomes zero."""
    columns = columns.clone()
    for index in range(columns.shape[1]):
        column = columns[:, index]
        before = float(column.norm())
        for other in range(index):
            column -= (columns[:, other] @ column) * columns[:, other]
        norm = float(column.norm())
        column *= 1 / norm if norm > 1e-10 * before else 0.0
    return columns
