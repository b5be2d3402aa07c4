"""Packs the values that are sent: as they are, in half precision, or as signs with one common magnitude.

Signs take one bit each (Sattler et al. 2019, sparse ternary compression): the same bytes carry three times as many
entries, and error feedback corrects the error of the common magnitude. Their array is the magnitude as a float32, then
the bits, then a one that marks the end.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs.array_checks import FLOATS, array_refusal
from potluck.model.codecs.dense_codec import as_tensor, to_half

__all__ = ["ValueFormat", "pack_values", "packed_value_bytes", "unpack_values", "value_count", "values_refusal"]

ValueFormat = Literal["f32", "f16", "sign"]
_MAGNITUDE = np.dtype("<f4")


def pack_values(values: Tensor, value_format: ValueFormat) -> Any:
    """Pack the values into a new array."""
    if value_format == "sign":
        return _pack_signs(values.numpy())
    return to_half(values).numpy() if value_format == "f16" else values.to(torch.float32, copy=True).numpy()


def unpack_values(packed: Any) -> Tensor:
    """The reverse of `pack_values`, up to the precision of the format."""
    if packed.dtype != np.uint8:
        values = as_tensor(packed)
        return values.to(torch.float32) if values.dtype == torch.float16 else values
    bits = np.unpackbits(packed[_MAGNITUDE.itemsize :], count=value_count(packed), bitorder="little")
    return torch.from_numpy(np.where(bits, -_common_magnitude(packed), _common_magnitude(packed)))


def packed_value_bytes(count: int, value_format: ValueFormat) -> int:
    """The size of the result of `pack_values`."""
    if value_format == "sign":
        return _MAGNITUDE.itemsize + count // 8 + 1
    return count * {"f32": 4, "f16": 2}[value_format]


def value_count(packed: Any) -> int:
    """The number of packed values; signs must have passed `values_refusal`."""
    if packed.dtype != np.uint8:
        return int(packed.size)
    full = int(packed.size) - _MAGNITUDE.itemsize - 1
    return 8 * full + int(packed[-1]).bit_length() - 1


def values_refusal(packed: Any) -> str | None:
    """Why these are not finite values, however many; None if they are."""
    if packed.dtype != np.uint8:
        return array_refusal(packed, "values", FLOATS, packed.size)
    if why := array_refusal(packed, "signs", (np.uint8,), packed.size):
        return why
    if packed.size <= _MAGNITUDE.itemsize or not packed[-1]:
        return "its signs have no end marker"
    return None if np.isfinite(_common_magnitude(packed)) else "the magnitude of its values is not finite"


def _pack_signs(values: Any) -> Any:
    magnitude = np.abs(values).mean(dtype=np.float64) if values.size else 0.0
    bits = np.packbits(np.append(values < 0, True), bitorder="little")
    return np.concatenate([np.array([magnitude], dtype=_MAGNITUDE).view(np.uint8), bits])


def _common_magnitude(packed: Any) -> np.float32:
    """The common magnitude of all values."""
    return np.float32(packed[: _MAGNITUDE.itemsize].view(_MAGNITUDE)[0])
