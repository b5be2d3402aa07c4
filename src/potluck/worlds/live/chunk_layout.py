"""How the arrays of a payload lie one behind the other, and which bytes are in which chunk.

A chunk is a stretch of that row and may reach over the end of an array; nothing is joined but such a chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["DTYPES", "ArraySpec", "ChunkLayout", "array_bytes", "array_specs"]

DTYPES = frozenset(
    ["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1"]
)  # what numbers may be on the wire

Extent = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """An array without its numbers."""

    dtype: str
    shape: Annotated[tuple[Extent, ...], msgspec.Meta(max_length=16)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype[2:])


class ArraySlice(NamedTuple):
    """The bytes from `start` to `stop` of one array."""

    array: int
    start: int
    stop: int


def array_specs(arrays: Sequence[npt.NDArray[Any]]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(array.dtype.str, array.shape) for array in arrays)


class ChunkLayout:
    """The row of bytes that some arrays make, cut into chunks."""

    def __init__(self, sizes: Sequence[int], chunk_bytes: int) -> None:
        self._sizes = sizes
        self._chunk_bytes = chunk_bytes
        self.nbytes = sum(sizes)
        self.chunk_count = -(-self.nbytes // chunk_bytes)

    def chunk_size(self, index: int) -> int:
        """How many bytes the chunk has."""
        return min(self._chunk_bytes, self.nbytes - index * self._chunk_bytes)

    def array_slices(self, index: int) -> Iterator[ArraySlice]:
        """What the chunk is made of."""
        start = index * self._chunk_bytes
        stop = start + self.chunk_size(index)
        begin = 0
        for array, size in enumerate(self._sizes):
            low, high = max(start - begin, 0), min(stop - begin, size)
            if low < high:
                yield ArraySlice(array, low, high)
            begin += size

    def read_chunk(self, index: int, views: Sequence[memoryview]) -> bytes:
        """The chunk's bytes, out of the arrays."""
        return b"".join(views[piece.array][piece.start : piece.stop] for piece in self.array_slices(index))

    def write_chunk(self, index: int, data: bytes, views: Sequence[memoryview]) -> None:
        """Put the chunk's bytes where they belong."""
        begin = 0
        for piece in self.array_slices(index):
            end = begin + piece.stop - piece.start
            views[piece.array][piece.start : piece.stop] = memoryview(data)[begin:end]
            begin = end


def array_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The array's own memory, as bytes."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
