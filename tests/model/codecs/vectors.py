"""Strategies for typical and degenerate vectors: empty, constant, tiny, huge, with ties."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from potluck.model.codecs import (
    AdaptiveCodec,
    Codec,
    DenseCodec,
    Fp16Codec,
    GradedCodec,
    Int8Codec,
    SparseCodec,
    TopKCodec,
)

__all__ = ["CODECS", "SPARSE", "values", "vectors"]

SPARSE: list[SparseCodec] = [
    TopKCodec(ratio=0.1),
    TopKCodec(ratio=0.3, values="f16"),
    TopKCodec(ratio=0.2, momentum=0.9),
    TopKCodec(ratio=0.2, error_feedback=False),
    TopKCodec(ratio=0.3, values="sign"),
    AdaptiveCodec(ratio=0.3, delta=0.3),
    AdaptiveCodec(ratio=0.3, delta=0.3, error_feedback=True, values="f16"),
    GradedCodec(ratios=(0.1, 0.3, 1.0), delta=0.4, values="f32"),
    GradedCodec(ratios=(0.05, 0.2), delta=0.2, values="f16"),
    GradedCodec(ratios=(0.05, 0.2), delta=0.5),
]
CODECS: list[Codec] = [
    DenseCodec(),
    Fp16Codec(),
    Int8Codec(block=7),
    Int8Codec(block=5, rounding="stochastic"),
    *SPARSE,
]

# Few distinct values make ties; the others are anything a gradient may hold.
values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 1e-45, 1e5]),
    st.floats(-(2.0**100), 2.0**100, width=32),
)


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


vectors = st.lists(values, max_size=60).map(_tensor)
