"""Computes tensors of a traced forward that depend on sizes and constants only, such as a causal mask.

torch's own transformers compare a mask with the causal one to choose a faster kernel; meta tensors have no values to
compare, but neither tensor depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_arg

__all__ = ["ConstantValues", "DependsOnDataError"]


class DependsOnDataError(Exception):
    """A value depends on the model's inputs, parameters or buffers, or on the batch size."""


class ConstantValues:
    """The values of a graph's nodes on real tensors, as far as they are constant."""

    def __init__(self, module: nn.Module, first: Mapping[fx.Node, Any], second: Mapping[fx.Node, Any]) -> None:
        """`first` and `second` are the nodes' values on meta tensors at two batch sizes."""
        self._module = module
        self._values = (first, second)
        self._computed: dict[fx.Node, Any] = {}

    @property
    def nodes(self) -> set[fx.Node]:
        """Nodes whose values were computed."""
        return set(self._computed)

    def constant_value(self, node: fx.Node) -> Any:
        """The value of a node; DependsOnDataError if it is not constant."""
        if node not in self._computed:
            self._computed[node] = self._compute_value(node)
        return self._computed[node]

    def _compute_value(self, node: fx.Node) -> Any:
        first, second = (values.get(node) for values in self._values)
        if isinstance(first, torch.device):
            return torch.device("cpu")
        if not isinstance(first, torch.Tensor):
            if first != second:
                raise DependsOnDataError
            return first
        if node.op == "get_attr":
            return self._constant_tensor(str(node.target))
        if node.op not in ("call_function", "call_method"):
            raise DependsOnDataError
        args, kwargs = map_arg((node.args, node.kwargs), self.constant_value)
        if node.op == "call_function":
            assert callable(node.target)
            function: Callable[..., Any] = node.target
        else:
            function = getattr(torch.Tensor, str(node.target))
        return function(*args, **kwargs)

    def _constant_tensor(self, name: str) -> torch.Tensor:
        value = getattr(self._module, name, None)
        if not name.startswith("_tensor_constant") or not isinstance(value, torch.Tensor) or value.is_meta:
            raise DependsOnDataError
        return value
