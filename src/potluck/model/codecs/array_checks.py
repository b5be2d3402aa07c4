"""Checks arrays received from a peer before anything of their size is allocated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["FLOATS", "array_refusal", "count_refusal", "is_finite"]

FLOATS = (np.float32, np.float64, np.float16)


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
        return f"its {name} are not all finite"
    return None


def is_finite(array: Any) -> bool:
    """Whether all values are finite: one pass without a copy, unless the sum itself overflows."""
    with np.errstate(all="ignore"):
        return math.isfinite(array.sum(dtype=np.float64)) or bool(np.isfinite(array).all())
