"""Checks arrays received from a peer before anything of their size is allocated."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

__all__ = ["FLOATS", "NOT_FINITE", "array_refusal", "count_refusal", "is_finite", "vector_norm"]

NOT_FINITE = "are not all finite"  # ends the refusal of values that are not
FLOATS = (np.float32, np.float64, np.float16)
_LEAST_SQUARES, _MOST_SQUARES = 1e-24, 1e36  # between which a sum of squares is precise, also in float32


def count_refusal(arrays: object, *counts: int) -> str | None:
    """Why the number of arrays is not one of the expected ones; None if it is."""
    if not isinstance(arrays, tuple | list) or not all(isinstance(array, np.ndarray) for array in arrays):
        return "its payload does not consist of arrays"
    if len(arrays) not in counts:
        return f"its payload has {len(arrays)} arrays, not {' or '.join(map(str, counts))}"
    return None


def array_refusal(array: Any, name: str, dtypes: tuple[type, ...], size: int) -> str | None:
    """Why this is not an array of `size` finite values of one of these dtypes; None if it is."""
    if array.dtype not in dtypes:  # the other byte order is a different dtype
        return f"its {name} are {array.dtype}, not {' or '.join(dtype.__name__ for dtype in dtypes)}"
    if array.shape != (size,):
        return f"its {name} have the shape {array.shape}, not ({size},)"
    if array.strides != (array.itemsize,) and size > 1:
        return f"its {name} are not contiguous"
    if array.dtype.kind == "f" and not is_finite(array):
        return f"its {name} {NOT_FINITE}"
    return None


def is_finite(array: Any) -> bool:
    """Whether all values are finite: one pass without a copy, unless the sum itself overflows."""
    with np.errstate(all="ignore"):
        return math.isfinite(array.sum(dtype=np.float64)) or bool(np.isfinite(array).all())


def vector_norm(array: Any) -> float:
    """The Euclidean norm of finite values: one pass in their own precision, unless their squares leave its range."""
    values = array.astype(np.float32) if array.dtype == np.float16 else array
    with np.errstate(all="ignore"):
        squares = float(np.dot(values, values))
        if _LEAST_SQUARES < squares < _MOST_SQUARES:
            return math.sqrt(squares)
        largest = float(np.abs(values).max()) if values.size else 0.0
        if largest == 0.0:
            return 0.0
        scaled = values.astype(np.float64) / largest
        return min(largest * math.sqrt(float(np.dot(scaled, scaled))), sys.float_info.max)
