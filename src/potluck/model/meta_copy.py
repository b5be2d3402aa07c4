"""Copies a module to meta tensors: the copy holds no memory, and tied tensors stay tied."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from potluck.errors import ModelError
from potluck.user_code import describe_user_error

__all__ = ["check_copyable", "check_module", "copy_to_meta", "input_dtype"]


def copy_to_meta(module: nn.Module) -> nn.Module:
    """The same module on meta tensors; the original's tensors are neither copied nor changed."""
    # deepcopy uses what the memo already contains, so no tensor is ever copied, and a tied one stays tied.
    memo: dict[int, object] = {id(tensor): _to_meta(tensor) for tensor in _iter_module_tensors(module)}
    return copy.deepcopy(module, memo)


def check_copyable(module: nn.Module) -> None:
    """Raise ModelError if a module cannot be copied at all: every device and every thread trains its own copy."""
    try:
        copy.deepcopy(module)
    except Exception as error:  # a module may hold anything
        raise ModelError(
            f"{type(module).__name__} cannot be copied ({describe_user_error(error)}); keep locks, files and generators"
            " out of the model, or define __deepcopy__"
        ) from error


def check_module(module: nn.Module) -> None:
    """Raise ModelError if a module cannot be split into layers, whatever its forward does."""
    parameters = dict(module.named_parameters())
    for name, tensor in (parameters | dict(module.named_buffers())).items():
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ModelError(f"{name!r} has no shape yet; run the lazy model once on a sample first")
    if not parameters:
        raise ModelError(f"{type(module).__name__} has no parameters, so there is nothing to train")
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise ModelError(f"{name!r} is complex, which cannot be sent; keep its real and imaginary parts apart")
    kinds = {parameter.dtype: name for name, parameter in parameters.items() if parameter.requires_grad}
    if len(kinds) > 1:
        listed = ", ".join(f"{str(dtype).removeprefix('torch.')} ({name})" for dtype, name in kinds.items())
        raise ModelError(
            f"trained parameters have different dtypes: {listed}; convert the model to one, e.g. model.float()"
        )


def input_dtype(module: nn.Module) -> torch.dtype:
    """The dtype that floating-point inputs need: that of the first weight that is not of integers."""
    return next((tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()), torch.float32)


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
