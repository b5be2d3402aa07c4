"""The order of layers where a forward cannot be traced: as seen in one run on meta tensors, or as the modules stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from potluck.model.flop_counter import FlopCounter, iter_tensors, meta_batch, size_bytes
from potluck.model.layer_assignment import LayerBuilder
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import BATCHES
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["list_layers", "observe_layers"]


def observe_layers(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> LayerBuilder:
    """Run once on meta tensors and write down which parameters each operation uses."""
    bones = copy_to_meta(module).train()
    with FlopCounter() as tally, ShapeOnlyMode():
        watch = _ParameterUseObserver(bones, tally)
        with watch:
            bones(meta_batch(shape, BATCHES[0], dtype))
        watch.finish_layer()
    return watch.builder


def list_layers(module: nn.Module) -> LayerBuilder:
    """The modules' own order, without sizes and costs."""
    ledger = LayerBuilder(module)
    for path, part in module.named_modules():
        names = ledger.owned_names([*part.parameters(recurse=False), *part.buffers(recurse=False)])
        if ledger.opens_layer(names, called=True):
            ledger.open_layer(path or names[0], path or None)
        ledger.record_use(names)
    return ledger


class _ParameterUseObserver(TorchFunctionMode):
    """Sees every call into torch together with the parameters among its arguments."""

    def __init__(self, bones: nn.Module, tally: FlopCounter) -> None:
        super().__init__()
        self.builder = LayerBuilder(bones)
        self._tally = tally
        self._modules = dict(bones.named_modules())
        self._made = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        # Reading .shape or .dtype of a weight is not a use of it.
        if getattr(func, "__name__", "") != "__get__":
            self._record_use(self.builder.owned_names(iter_tensors([args, given])))
        value = func(*args, **given)
        self._made = size_bytes(value) or self._made
        return value

    def finish_layer(self) -> None:
        """The last layer ends here."""
        self.builder.add_flops(self._tally.take_count())
        self.builder.set_output_bytes(self.builder.current_layer, self._made)

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
