"""The numbers that are sent: as they are, in half precision, or only their signs and one size for all of them.

Signs take a bit each (Sattler et al. 2019, sparse ternary compression): for the same bytes three times as many entries
can be sent; what the common size gets wrong is left to error feedback. Their array is the size as a float32, then the
bits, then a one that marks the end.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs.array_checks import FLOATS, array_refusal
from potluck.model.codecs.dense_codec import as_tensor
from potluck.model.codecs.fp16_codec import to_half

__all__ = ["Form", "pack_values", "packed_value_bytes", "unpack_values", "value_count", "values_refusal"]

Form = Literal["f32", "f16", "sign"]
_SIZE = np.dtype("<f4")


def pack_values(numbers: Tensor, form: Form) -> Any:
    """The numbers as an array of their own."""
    if form == "sign":
        return _pack_signs(numbers.numpy())
    return to_half(numbers).numpy() if form == "f16" else numbers.to(torch.float32, copy=True).numpy()


def unpack_values(packed: Any) -> Tensor:
    """What the other side reads."""
    if packed.dtype != np.uint8:
        values = as_tensor(packed)
        return values.to(torch.float32) if values.dtype == torch.float16 else values
    bits = np.unpackbits(packed[_SIZE.itemsize :], count=value_count(packed), bitorder="little")
    return torch.from_numpy(np.where(bits, -_common_magnitude(packed), _common_magnitude(packed)))


def packed_value_bytes(count: int, form: Form) -> int:
    """How many bytes `pack` takes."""
    return _SIZE.itemsize + count // 8 + 1 if form == "sign" else count * {"f32": 4, "f16": 2}[form]


def value_count(packed: Any) -> int:
    """How many numbers they are; signs must have come through `refusal`."""
    if packed.dtype != np.uint8:
        return int(packed.size)
    full = int(packed.size) - _SIZE.itemsize - 1
    return 8 * full + int(packed[-1]).bit_length() - 1


def values_refusal(packed: Any) -> str | None:
    """Why these are not finite numbers, however many."""
    if packed.dtype != np.uint8:
        return array_refusal(packed, "values", FLOATS, packed.size)
    if why := array_refusal(packed, "signs", (np.uint8,), packed.size):
        return why
    if packed.size <= _SIZE.itemsize or not packed[-1]:
        return "its signs have no end"
    return None if np.isfinite(_common_magnitude(packed)) else "the size of its values is not finite"


def _pack_signs(numbers: Any) -> Any:
    size = np.abs(numbers).mean(dtype=np.float64) if numbers.size else 0.0
    bits = np.packbits(np.append(numbers < 0, True), bitorder="little")
    return np.concatenate([np.array([size], dtype=_SIZE).view(np.uint8), bits])


def _common_magnitude(packed: Any) -> np.float32:
    """The size of all numbers."""
    return np.float32(packed[: _SIZE.itemsize].view(_SIZE)[0])
