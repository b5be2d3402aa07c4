"""Checks tensors received from another stage before they are used, and turns tensors into arrays and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from potluck.errors import ModelError
from potluck.model.codecs.array_checks import NOT_FINITE, count_refusal, is_finite
from potluck.model.layer_chain import LayerChain
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.stage_modules import sent_nodes

__all__ = ["TensorSpec", "crossing_specs", "tensor_spec", "tensors_refusal", "to_array", "to_tensor"]


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
        dtype = "uint16" if spec.dtype == torch.bfloat16 else str(spec.dtype).removeprefix("torch.")
        if array.dtype.name != dtype or not array.dtype.isnative:
            return f"its {name} are {array.dtype}, not {dtype}"
        if array.shape != spec.shape:
            return f"its {name} have the shape {array.shape}, not {spec.shape}"
        finite = (
            bool(to_tensor(array).isfinite().all())
            if spec.dtype == torch.bfloat16
            else array.dtype.kind != "f" or is_finite(array)
        )
        if not finite:
            return f"its {name} {NOT_FINITE}"
    return None


def to_array(tensor: Tensor) -> Any:
    """A tensor as an array that can be sent; the bits of bfloat16, which numpy does not have, as uint16."""
    if tensor.dtype == torch.uint16:
        raise ModelError("a pipeline cannot send uint16 tensors; convert them to int32")
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def to_tensor(array: Any) -> Tensor:
    """The reverse of `to_array`."""
    if array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
