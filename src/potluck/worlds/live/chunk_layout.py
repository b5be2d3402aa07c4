"""Divides the arrays of a payload into chunks.

The arrays form one contiguous byte range; a chunk is a slice of it and may span arrays. Only a chunk's bytes are ever
copied, never the whole payload.
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
)  # the array types that may be sent

_MAX_STRIDE_BYTES = 1 << 48

Extent = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class ArraySpec(msgspec.Struct, frozen=True, array_like=True):
    """The type and shape of an array."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Annotated[tuple[Extent, ...], msgspec.Meta(max_length=16)]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(self.dtype[2:])

    @property
    def is_addressable(self) -> bool:
        """Whether an array of this shape can exist: an empty one, too, has strides that must not overflow."""
        return math.prod(extent or 1 for extent in self.shape) * int(self.dtype[2:]) <= _MAX_STRIDE_BYTES


class ArraySlice(NamedTuple):
    """The bytes from `start` to `stop` of one array."""

    array: int
    start: int
    stop: int


def array_specs(arrays: Sequence[npt.NDArray[Any]]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(array.dtype.str, array.shape) for array in arrays)


class ChunkLayout:
    """Maps chunks to the bytes of the arrays that they consist of."""

    def __init__(self, sizes: Sequence[int], chunk_bytes: int) -> None:
        self._sizes = sizes
        self._chunk_bytes = chunk_bytes
        self.nbytes = sum(sizes)
        self.chunk_count = -(-self.nbytes // chunk_bytes)

    def chunk_size(self, index: int) -> int:
        """The number of bytes in the chunk."""
        return min(self._chunk_bytes, self.nbytes - index * self._chunk_bytes)

    def array_slices(self, index: int) -> Iterator[ArraySlice]:
        """The slices that make up the chunk."""
        start = index * self._chunk_bytes
        stop = start + self.chunk_size(index)
        offset = 0
        for array, size in enumerate(self._sizes):
            low, high = max(start - offset, 0), min(stop - offset, size)
            if low < high:
                yield ArraySlice(array, low, high)
            offset += size

    def read_chunk(self, index: int, views: Sequence[memoryview]) -> bytes:
        """Copy the chunk's bytes out of the arrays."""
        return b"".join(views[part.array][part.start : part.stop] for part in self.array_slices(index))

    def write_chunk(self, index: int, data: bytes, views: Sequence[memoryview]) -> None:
        """Copy the chunk's bytes into the arrays."""
        offset = 0
        for part in self.array_slices(index):
            end = offset + part.stop - part.start
            views[part.array][part.start : part.stop] = memoryview(data)[offset:end]
            offset = end


def array_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The array's memory as bytes, without a copy."""
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
