"""Runs a traced graph on meta tensors and records each node's output, in-place changes and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from potluck.model.flop_counter import FlopCounter, iter_tensors
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["PROBE_BATCH_SIZES", "MetaInterpreter", "NodeFacts", "interpret_graph"]

# Two sizes: a dimension that differs between them is the batch. Batch norm refuses to train on a batch of one.
PROBE_BATCH_SIZES = (2, 3)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class NodeFacts:
    """One node's value at both batch sizes, the storages it changes in place, and its FLOPs at the first size."""

    value: Any
    value_at_other_batch: Any
    mutates: frozenset[int]
    flops: int


class MetaInterpreter(fx.Interpreter):
    """Runs nodes of a graph on a meta module; values are never freed, so a storage's address identifies it."""

    def __init__(self, meta_module: nn.Module, graph: fx.Graph) -> None:
        super().__init__(meta_module, garbage_collect_values=False, graph=graph)
        self.mutates: dict[fx.Node, frozenset[int]] = {}
        self.flops: dict[fx.Node, int] = {}
        self.flop_counter: FlopCounter | None = None
        self._constants: dict[str, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = [(tensor, tensor._version) for node in n.all_input_nodes for tensor in iter_tensors(self.env[node])]
        value = super().run_node(n)
        self.mutates[n] = frozenset(storage_id(tensor) for tensor, version in before if tensor._version != version)
        self.flops[n] = self.flop_counter.take_count() if self.flop_counter is not None else 0
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Skip batch norm, which keeps the shape and counts as no FLOPs but takes 10 ms on meta tensors."""
        module = self.fetch_attr(str(target))
        if type(module) in BATCH_NORMS and args and args[0].dim() > 1 and args[0].shape[1] == module.num_features:
            return torch.empty_like(args[0])
        return super().call_module(target, args, kwargs)

    def fetch_attr(self, target: str) -> Any:
        """Move constants, which the trace creates as real tensors, to meta like all else."""
        value = super().fetch_attr(target)
        if isinstance(value, torch.Tensor) and not value.is_meta:
            return self._constants.setdefault(target, value.to("meta"))
        return value


def interpret_graph(
    meta_module: nn.Module, graph: fx.Graph, arguments: Sequence[Sequence[Any]]
) -> dict[fx.Node, NodeFacts]:
    """The facts about every node of a complete graph; `arguments` are for both batch sizes."""
    first, second = MetaInterpreter(meta_module, graph), MetaInterpreter(meta_module, graph)
    with FlopCounter() as flop_counter, ShapeOnlyMode():
        first.flop_counter = flop_counter
        first.run(*arguments[0])
    with ShapeOnlyMode():
        second.run(*arguments[1])
    return {
        node: NodeFacts(first.env[node], second.env[node], first.mutates[node], first.flops[node])
        for node in graph.nodes
        if node in first.env
    }


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
