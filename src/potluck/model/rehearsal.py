"""Play a traced graph on meta tensors and write down what each node makes, changes in place and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from potluck.model.costs import Tally, sample, tensors
from potluck.model.hollow import Hollow

__all__ = ["BATCHES", "Fact", "Rehearsal", "rehearse"]

# Two sizes: what differs between them in a shape is the batch. Batch norm in training refuses a batch of one.
BATCHES = (2, 3)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class Fact:
    """What one node does: its value at either batch size, the storages it changes in place, its FLOPs at the first."""

    value: Any
    other: Any
    mutates: frozenset[int]
    flops: int


class Rehearsal(fx.Interpreter):
    """Runs nodes of a graph over a skeleton; nothing is freed, so a storage's address stays its identity."""

    def __init__(self, bones: nn.Module, graph: fx.Graph) -> None:
        super().__init__(bones, garbage_collect_values=False, graph=graph)
        self.mutates: dict[fx.Node, frozenset[int]] = {}
        self.flops: dict[fx.Node, int] = {}
        self.tally: Tally | None = None
        self._constants: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = [(tensor, tensor._version) for node in n.all_input_nodes for tensor in tensors(self.env[node])]
        value = super().run_node(n)
        self.mutates[n] = frozenset(storage(tensor) for tensor, version in before if tensor._version != version)
        self.flops[n] = self.tally.split() if self.tally is not None else 0
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Batch norm keeps the shape and counts nothing, but takes 10 ms on meta tensors: it is not run."""
        module = self.fetch_attr(str(target))
        if type(module) in BATCH_NORMS and args and args[0].dim() > 1 and args[0].shape[1] == module.num_features:
            return torch.empty_like(args[0])
        return super().call_module(target, args, kwargs)

    def fetch_attr(self, target: str) -> Any:
        """Constants that the trace made are real; here they are meta like all else."""
        value = super().fetch_attr(target)
        if isinstance(value, torch.Tensor) and not value.is_meta:
            return self._constants.setdefault(target, value.to("meta"))
        return value


def rehearse(bones: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype) -> dict[fx.Node, Fact]:
    """The facts of every node of a finished graph."""
    first, second = Rehearsal(bones, graph), Rehearsal(bones, graph)
    with Tally() as tally, Hollow():
        first.tally = tally
        first.run(sample(shape, BATCHES[0], dtype))
    with Hollow():
        second.run(sample(shape, BATCHES[1], dtype))
    return {
        node: Fact(first.env[node], second.env[node], first.mutates[node], first.flops[node])
        for node in graph.nodes
        if node in first.env
    }


def storage(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
