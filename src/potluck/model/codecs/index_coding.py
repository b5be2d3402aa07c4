"""Packs the ascending indices of the values that are sent, close to the fewest possible bits.

A bitmap where many are sent, else Elias-Fano coding: the low bits of each index as they are, and the high
bits as a bit vector in which the i-th one is at (high part + i).

    of 1,000,000    1 in 2     1 in 10     1 in 100     1 in 1000
    bits for each   2          5.3         8.6          12           (int32: 32)

Both sides know how many values of how many are sent, which alone decides the coding and the number of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["indices_refusal", "pack_indices", "packed_index_bytes", "unpack_indices"]


def pack_indices(indices: Any, size: int) -> Any:
    """Pack ascending indices below `size` into bytes."""
    count = len(indices)
    if _uses_bitmap(count, size):
        return _pack_flags(indices, size)
    low, span = _elias_fano_shape(count, size)
    high = _pack_flags((indices >> low) + np.arange(count), span)
    rest = np.unpackbits(indices.astype("<i8").view(np.uint8).reshape(count, 8), axis=1, count=low, bitorder="little")
    return np.concatenate([np.packbits(rest.reshape(-1), bitorder="little"), high])


def unpack_indices(packed: Any, count: int, size: int) -> Any:
    """The reverse of `pack_indices`; other bytes may give any number of indices in any order."""
    if _uses_bitmap(count, size):
        return np.flatnonzero(np.unpackbits(packed, count=size, bitorder="little"))
    low, span = _elias_fano_shape(count, size)
    border = _bytes_for_bits(count * low)
    high = np.flatnonzero(np.unpackbits(packed[border:], count=span, bitorder="little"))
    rest = np.unpackbits(packed[:border], count=count * low, bitorder="little").reshape(count, low)
    return ((high - np.arange(len(high)))[:count] << low) + _bits_to_integers(rest)[: len(high)]


def packed_index_bytes(count: int, size: int) -> int:
    """The size of the result of `pack_indices`."""
    return min(_bytes_for_bits(size), _elias_fano_bytes(count, size))


def indices_refusal(packed: Any, count: int, size: int) -> str | None:
    """Why these bytes, of the right size, are not `count` different indices below `size`; None if they are."""
    indices = unpack_indices(packed, count, size)
    if len(indices) != count or (count and (indices[-1] >= size or np.any(indices[1:] <= indices[:-1]))):
        return f"its indices are not {count} different indices below {size}"
    return None


def _uses_bitmap(count: int, size: int) -> bool:
    return _bytes_for_bits(size) <= _elias_fano_bytes(count, size)


def _elias_fano_bytes(count: int, size: int) -> int:
    low, span = _elias_fano_shape(count, size)
    return _bytes_for_bits(count * low) + _bytes_for_bits(span)


def _elias_fano_shape(count: int, size: int) -> tuple[int, int]:
    """The number of low bits of each index, and the length of the bit vector."""
    if count == 0:
        return 0, 0
    low = (size // count).bit_length() - 1
    return low, count + ((size - 1) >> low)


def _pack_flags(indices: Any, length: int) -> Any:
    flags = np.zeros(length, dtype=np.uint8)
    flags[indices] = 1
    return np.packbits(flags, bitorder="little")


def _bits_to_integers(bits: Any) -> Any:
    """Rows of bits, the lowest first, as integers."""
    octets = np.zeros((len(bits), 8), dtype=np.uint8)
    packed = np.packbits(bits, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view("<i8").reshape(-1)


def _bytes_for_bits(bits: int) -> int:
    return -(-bits // 8)
