"""The order of layers where a forward cannot be traced: as observed in one run on meta tensors, or as registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from potluck.model.flop_counter import FlopCounter, iter_tensors, meta_batch, size_bytes
from potluck.model.layer_assignment import LayerBuilder
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["list_layers", "observe_layers"]


def observe_layers(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> LayerBuilder:
    """Run once on meta tensors and record which parameters each operation uses."""
    meta_module = copy_to_meta(module).train()
    with FlopCounter() as flop_counter, ShapeOnlyMode():
        observer = _ParameterUseObserver(meta_module, flop_counter)
        with observer:
            meta_module(meta_batch(shape, PROBE_BATCH_SIZES[0], dtype))
        observer.finish_layer()
    return observer.builder


def list_layers(module: nn.Module) -> LayerBuilder:
    """The modules in the order in which they are registered, without sizes and costs."""
    builder = LayerBuilder(module)
    for path, submodule in module.named_modules():
        names = builder.owned_names([*submodule.parameters(recurse=False), *submodule.buffers(recurse=False)])
        if builder.opens_layer(names, called=True):
            builder.open_layer(path or names[0], path or None)
        builder.record_use(names)
    return builder


class _ParameterUseObserver(TorchFunctionMode):
    """Intercepts every torch call and records the parameters among its arguments."""

    def __init__(self, meta_module: nn.Module, flop_counter: FlopCounter) -> None:
        super().__init__()
        self.builder = LayerBuilder(meta_module)
        self._flop_counter = flop_counter
        self._modules = dict(meta_module.named_modules())
        self._output_bytes = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        # Reading .shape or .dtype of a weight is not a use of it.
        if getattr(func, "__name__", "") != "__get__":
            self._record_use(self.builder.owned_names(iter_tensors([args, kwargs])))
        value = func(*args, **kwargs)
        self._output_bytes = size_bytes(value) or self._output_bytes
        return value

    def finish_layer(self) -> None:
        """End the current layer."""
        self.builder.add_flops(self._flop_counter.take_count())
        self.builder.set_output_bytes(self.builder.current_layer, self._output_bytes)

    def _record_use(self, names: list[str]) -> None:
        if self.builder.opens_layer(names, called=False):
            self.finish_layer()
            weight = next(name for name in names if self.builder.opens_layer([name], called=False))
            owner = weight.rpartition(".")[0]
            self.builder.open_layer(owner or weight, owner if self._is_leaf_module(owner) else None)
        self.builder.record_use(names)

    def _is_leaf_module(self, path: str) -> bool:
        return bool(path) and (
            not list(self._modules[path].children()) or isinstance(self._modules[path], nn.MultiheadAttention)
        )
