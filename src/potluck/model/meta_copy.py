"""Copies a module to meta tensors: the copy holds no memory, and tied tensors stay tied."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from potluck.errors import ModelError

__all__ = ["check_module", "copy_to_meta"]


def copy_to_meta(module: nn.Module) -> nn.Module:
    """The same module on meta tensors; the original's tensors are neither copied nor changed."""
    # deepcopy uses what the memo already contains, so no tensor is ever copied, and a tied one stays tied.
    memo: dict[int, object] = {id(tensor): _to_meta(tensor) for tensor in _iter_module_tensors(module)}
    return copy.deepcopy(module, memo)


def check_module(module: nn.Module) -> None:
    """Raise ModelError if a module cannot be split into layers, whatever its forward does."""
    parameters = dict(module.named_parameters())
    for name, tensor in (parameters | dict(module.named_buffers())).items():
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"{name!r} has no shape yet; run the lazy model once on a sample first")
    if not parameters:
        raise ModelError(f"{type(module).__name__} has no parameters, so there is nothing to train")
    kinds = {parameter.dtype: name for name, parameter in parameters.items()}
    if len(kinds) > 1:
        listed = ", ".join(f"{str(dtype).removeprefix('torch.')} ({name})" for dtype, name in kinds.items())
        raise ModelError(f"parameters have different dtypes: {listed}; convert the model to one, e.g. model.float()")


def _iter_module_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for submodule in module.modules():
        yield from (value for value in vars(submodule).values() if isinstance(value, torch.Tensor))


def _to_meta(tensor: torch.Tensor) -> torch.Tensor:
    bare = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(bare, requires_grad=tensor.requires_grad)
    return bare
