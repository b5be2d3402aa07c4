"""The order of layers where a forward cannot be traced: as seen in one run on meta tensors, or as the modules stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from potluck.model.costs import Tally, sample, size_bytes, tensors
from potluck.model.hollow import Hollow
from potluck.model.layers import Ledger
from potluck.model.rehearsal import BATCHES
from potluck.model.skeleton import skeleton

__all__ = ["listed", "observed"]


def observed(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Ledger:
    """Run once on meta tensors and write down which parameters each operation uses."""
    bones = skeleton(module).train()
    with Tally() as tally, Hollow():
        watch = _Watch(bones, tally)
        with watch:
            bones(sample(shape, BATCHES[0], dtype))
        watch.finish()
    return watch.ledger


def listed(module: nn.Module) -> Ledger:
    """The modules' own order, without sizes and costs."""
    ledger = Ledger(module)
    for path, part in module.named_modules():
        names = ledger.names([*part.parameters(recurse=False), *part.buffers(recurse=False)])
        if ledger.opens(names, called=True):
            ledger.open(path or names[0], path or None)
        ledger.use(names)
    return ledger


class _Watch(TorchFunctionMode):
    """Sees every call into torch together with the parameters among its arguments."""

    def __init__(self, bones: nn.Module, tally: Tally) -> None:
        super().__init__()
        self.ledger = Ledger(bones)
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
            self._use(self.ledger.names(tensors([args, given])))
        value = func(*args, **given)
        self._made = size_bytes(value) or self._made
        return value

    def finish(self) -> None:
        """The last layer ends here."""
        self.ledger.cost(self._tally.split())
        self.ledger.output(self.ledger.current, self._made)

    def _use(self, names: list[str]) -> None:
        if self.ledger.opens(names, called=False):
            self.finish()
            weight = next(name for name in names if self.ledger.opens([name], called=False))
            owner = weight.rpartition(".")[0]
            self.ledger.open(owner or weight, owner if self._is_leaf(owner) else None)
        self.ledger.use(names)

    def _is_leaf(self, path: str) -> bool:
        return bool(path) and (
            not list(self._modules[path].children()) or isinstance(self._modules[path], nn.MultiheadAttention)
        )
