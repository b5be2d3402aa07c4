"""Packs blocks of values in 8 or 4 bits each, every block with a scale of its own.

A packed array is the scales of all blocks as float32, then the levels: bytes, or two levels to a byte. Both sides know
the lengths of the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs.array_checks import NOT_FINITE, array_refusal, is_finite

__all__ = ["Bits", "blocks_refusal", "pack_blocks", "packed_block_bytes", "unpack_blocks"]

Bits = Literal[4, 8]
_SCALE = np.dtype("<f4")
_HIGHEST = {4: 7, 8: 127}


def pack_blocks(values: Tensor, lengths: Sequence[int], bits: Bits) -> Any:
    """Round each value to a level of its block; the scale of a block that is not finite is not finite either."""
    array, starts = values.numpy().astype(np.float32), _block_starts(lengths)
    largest = np.maximum.reduceat(np.abs(array), starts) if len(starts) else np.zeros(0, np.float32)
    scales = (largest / _HIGHEST[bits]).astype(_SCALE)
    usable = np.where(np.isfinite(scales) & (scales > 0), scales, np.float32(1))
    levels = np.nan_to_num(array / np.repeat(usable, lengths)).round()
    levels = levels.clip(-_HIGHEST[bits], _HIGHEST[bits]).astype(np.int8).view(np.uint8)
    if bits == 4:
        pairs = np.append(levels & 15, np.zeros(len(levels) % 2, np.uint8)).reshape(-1, 2)
        levels = pairs[:, 0] | pairs[:, 1] << 4
    return np.concatenate([scales.view(np.uint8), levels])


def unpack_blocks(packed: Any, lengths: Sequence[int], bits: Bits) -> Tensor:
    """The reverse of `pack_blocks`, up to rounding."""
    border, count = len(lengths) * _SCALE.itemsize, sum(lengths)
    scales, levels = packed[:border].copy().view(_SCALE), packed[border:]
    if bits == 4:
        nibbles = np.stack([levels & 15, levels >> 4], axis=1).reshape(-1)[:count]
        levels = (nibbles ^ 8) - np.uint8(8)  # extends the sign
    return torch.from_numpy(levels.view(np.int8).astype(np.float32) * np.repeat(scales, lengths))


def packed_block_bytes(lengths: Sequence[int], bits: Bits) -> int:
    """The size of the result of `pack_blocks`."""
    return len(lengths) * _SCALE.itemsize + -(-sum(lengths) * bits // 8)


def blocks_refusal(packed: Any, name: str, lengths: Sequence[int], bits: Bits) -> str | None:
    """Why these are not blocks of finite values; None if they are."""
    if why := array_refusal(packed, name, (np.uint8,), packed_block_bytes(lengths, bits)):
        return why
    scales = packed[: len(lengths) * _SCALE.itemsize].copy().view(_SCALE)
    return None if is_finite(scales) else f"its {name} {NOT_FINITE}"


def _block_starts(lengths: Sequence[int]) -> Any:
    assert all(length > 0 for length in lengths), "reduceat would give an empty block the value of the next"
    return np.cumsum([0, *lengths[:-1]]) if lengths else np.zeros(0, np.int64)
