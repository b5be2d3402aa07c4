"""Counts the MACs of a forward pass on meta tensors with PyTorch's FLOP formulas: nothing is computed or allocated.

A MAC is one multiply and one add; the formulas count both, so MACs are half of it. They cover convolutions
(grouped, depthwise, transposed), matrix products and attention; look-ups, norms and activations count as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from potluck.model.input_spec import InputSpec, call_model
from potluck.model.meta_copy import copy_to_meta
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["FLOPS_PER_MAC", "FlopCounter", "count_macs", "iter_tensors", "macs_per_sample", "size_bytes"]

FLOPS_PER_MAC = 2


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs; `take_count` returns what was counted since its last call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch.compile, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with self:
            decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        output = func(*args, **kwargs)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self._counted += int(formula(*args, **kwargs, out_val=output))
        return output

    def take_count(self) -> int:
        """FLOPs since the last call."""
        since, self._counted = self._counted, 0
        return since


def count_macs(module: nn.Module, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32) -> int:
    """Forward MACs of the whole module for one sample of this shape."""
    batch = 2
    with FlopCounter() as flop_counter, ShapeOnlyMode():
        call_model(copy_to_meta(module), InputSpec.of_shape(shape, dtype).meta_batch(batch))
        return macs_per_sample(flop_counter.take_count(), batch)


def macs_per_sample(flops: int, batch: int) -> int:
    """MACs of one sample, from the FLOPs of `batch` samples."""
    return round(flops / (FLOPS_PER_MAC * batch))


def iter_tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors inside nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from iter_tensors(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from iter_tensors(inner)


def size_bytes(value: object) -> int:
    """Bytes of all tensors inside nested tuples, lists and dicts."""
    return sum(tensor.numel() * tensor.element_size() for tensor in iter_tensors(value))
