"""Finds the buffers that training never changes (masks, position tables), so that they need not travel.

One training step's forward pass on meta tensors shows which buffers are written or replaced. Buffers of norm layers
count as changing whatever the step shows, and so do those that a module lists in its attribute `changing_buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._python_dispatch import TorchDispatchMode

from potluck.model.flop_counter import iter_tensors
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import storage_id
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["find_constant_buffers", "is_persistent", "iter_owned_buffers"]


def find_constant_buffers(module: nn.Module, run_forward: Callable[[nn.Module], object]) -> frozenset[str]:
    """The names of the buffers that training does not change; `run_forward` calls a module on a meta batch.

    Where the module cannot run on meta tensors, only non-persistent buffers count as constant.
    """
    candidates = _candidates(module)
    if not candidates:
        return frozenset()
    meta_module = copy_to_meta(module).train()
    before = dict(meta_module.named_buffers())
    try:
        with ShapeOnlyMode(), _WriteRecorder() as recorder:
            run_forward(meta_module)
    except Exception:  # a user's forward may raise anything; tracing reports it
        return frozenset(name for name in candidates if not is_persistent(module, name))
    after = dict(meta_module.named_buffers())
    return frozenset(
        name
        for name in candidates
        if after.get(name) is before[name] and storage_id(before[name]) not in recorder.written
    )


def is_persistent(module: nn.Module, path: str) -> bool:
    """Whether a state dict contains this parameter or buffer."""
    owner, _, name = path.rpartition(".")
    return name not in module.get_submodule(owner)._non_persistent_buffers_set


def iter_owned_buffers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Each buffer's name, the module that owns it, and its name there."""
    for path, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                yield f"{path}.{name}" if path else name, owner, name


def _candidates(module: nn.Module) -> set[str]:
    """The buffers that may be constant: all but those of norm layers and those that a module names."""
    known = dict(module.named_buffers())  # a buffer that two modules share is known by its first name
    declared = {
        path
        for path, owner, name in iter_owned_buffers(module)
        if isinstance(owner, _NormBase) or name in getattr(owner, "changing_buffers", ())
    }
    return known.keys() - declared


class _WriteRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the storages that operations write to, also through `.data`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            is_statistic = "batch_norm" in str(func) and argument.name in ("running_mean", "running_var")
            if is_statistic or (argument.alias_info is not None and argument.alias_info.is_write):
                value = args[index] if index < len(args) else kwargs.get(argument.name)
                self.written.update(storage_id(tensor) for tensor in iter_tensors(value))
        return func(*args, **kwargs)
