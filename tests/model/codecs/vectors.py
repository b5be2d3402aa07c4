"""Vectors as they come and as they should not: empty, all alike, tiny, huge, with ties."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from potluck.model.codecs import Adaptive, Codec, Dense, Fp16, Graded, Int8, Sparse, TopK

__all__ = ["CODECS", "SPARSE", "numbers", "vectors"]

SPARSE: list[Sparse] = [
    TopK(ratio=0.1),
    TopK(ratio=0.3, values="f16"),
    TopK(ratio=0.2, momentum=0.9),
    TopK(ratio=0.2, error_feedback=False),
    TopK(ratio=0.3, values="sign"),
    Adaptive(ratio=0.3, delta=0.3),
    Adaptive(ratio=0.3, delta=0.3, error_feedback=True, values="f16"),
    Graded(ratios=(0.1, 0.3, 1.0), delta=0.4, values="f32"),
    Graded(ratios=(0.05, 0.2), delta=0.2, values="f16"),
    Graded(ratios=(0.05, 0.2), delta=0.5),
]
CODECS: list[Codec] = [Dense(), Fp16(), Int8(block=7), Int8(block=5, rounding="stochastic"), *SPARSE]

# Few different numbers make ties; the others are anything that a gradient may hold.
numbers = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, 1e5]),
    st.floats(-(2.0**100), 2.0**100, width=32),
)


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


vectors = st.lists(numbers, max_size=60).map(_tensor)
