"""Whether an array that came from a peer is what it should be, told before anything of its size is allocated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["FLOATS", "array_refusal", "count_refusal", "is_finite"]

FLOATS = (np.float32, np.float64, np.float16)


def count_refusal(arrays: object, *counts: int) -> str | None:
    """Why these are not as many arrays as they should be."""
    if not isinstance(arrays, tuple | list) or not all(isinstance(array, np.ndarray) for array in arrays):
        return "its payload is not made of arrays"
    if len(arrays) not in counts:
        return f"its payload has {len(arrays)} arrays, not {' or '.join(map(str, counts))}"
    return None


def array_refusal(array: Any, name: str, dtypes: tuple[type, ...], size: int) -> str | None:
    """Why this is not an array of `size` such numbers, all finite."""
    if array.dtype not in dtypes:  # the other byte order is another dtype
        return f"its {name} are {array.dtype}, not {' or '.join(kind.__name__ for kind in dtypes)}"
    if array.shape != (size,):
        return f"its {name} have the shape {array.shape}, not ({size},)"
    if array.strides != (array.itemsize,) and size > 1:
        return f"its {name} do not lie side by side"
    if array.dtype.kind == "f" and not is_finite(array):
        return f"its {name} are not all finite"
    return None


def is_finite(array: Any) -> bool:
    """One pass and no copy; only where the sum itself runs over does every value have to be looked at."""
    with np.errstate(all="ignore"):
        return math.isfinite(array.sum(dtype=np.float64)) or bool(np.isfinite(array).all())
