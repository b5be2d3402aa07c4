"""Checks tensors received from another stage before they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from potluck.model.codecs.array_checks import count_refusal, is_finite
from potluck.model.layer_chain import LayerChain
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.stage_modules import sent_nodes

__all__ = ["TensorSpec", "crossing_specs", "tensor_spec", "tensors_refusal"]


class TensorSpec(NamedTuple):
    """The shape and dtype that an array must have."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def tensor_spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


def crossing_specs(chain: LayerChain, after: int, samples: int) -> list[TensorSpec]:
    """What crosses a cut for this many samples, extrapolated from the shapes at two batch sizes."""
    assert chain.recording is not None
    facts = [chain.recording.facts[node] for node in sent_nodes(chain, after)]
    return [
        TensorSpec(_scale_shape(fact.value.shape, fact.value_at_other_batch.shape, samples), fact.value.dtype)
        for fact in facts
    ]


def _scale_shape(small: Sequence[int], large: Sequence[int], samples: int) -> tuple[int, ...]:
    few, many = PROBE_BATCH_SIZES
    return tuple(one + (other - one) * (samples - few) // (many - few) for one, other in zip(small, large, strict=True))


def tensors_refusal(arrays: Any, specs: Sequence[TensorSpec], name: str) -> str | None:
    """Why these arrays do not match the specs or are not finite; None if they are fine."""
    if why := count_refusal(arrays, len(specs)):
        return why
    for array, spec in zip(arrays, specs, strict=True):
        dtype = str(spec.dtype).removeprefix("torch.")
        if array.dtype.name != dtype or not array.dtype.isnative:
            return f"its {name} are {array.dtype}, not {dtype}"
        if array.shape != spec.shape:
            return f"its {name} have the shape {array.shape}, not {spec.shape}"
        if array.dtype.kind == "f" and not is_finite(array):
            return f"its {name} are not all finite"
    return None
