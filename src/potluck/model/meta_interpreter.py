"""Play a traced graph on meta tensors and write down what each node makes, changes in place and costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from potluck.model.flop_counter import FlopCounter, iter_tensors, meta_batch
from potluck.model.shape_only import ShapeOnlyMode

__all__ = ["BATCHES", "MetaInterpreter", "NodeFacts", "interpret_graph"]

# Two sizes: what differs between them in a shape is the batch. Batch norm in training refuses a batch of one.
BATCHES = (2, 3)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(frozen=True)
class NodeFacts:
    """What one node does: its value at either batch size, the storages it changes in place, its FLOPs at the first."""

    value: Any
    value_at_other_batch: Any
    mutates: frozenset[int]
    flops: int


class MetaInterpreter(fx.Interpreter):
    """Runs nodes of a graph over a skeleton; nothing is freed, so a storage's address stays its identity."""

    def __init__(self, bones: nn.Module, graph: fx.Graph) -> None:
        super().__init__(bones, garbage_collect_values=False, graph=graph)
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


def interpret_graph(
    bones: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype
) -> dict[fx.Node, NodeFacts]:
    """The facts of every node of a finished graph."""
    first, second = MetaInterpreter(bones, graph), MetaInterpreter(bones, graph)
    with FlopCounter() as tally, ShapeOnlyMode():
        first.flop_counter = tally
        first.run(meta_batch(shape, BATCHES[0], dtype))
    with ShapeOnlyMode():
        second.run(meta_batch(shape, BATCHES[1], dtype))
    return {
        node: NodeFacts(first.env[node], second.env[node], first.mutates[node], first.flops[node])
        for node in graph.nodes
        if node in first.env
    }


def storage_id(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    return int(tensor.untyped_storage()._cdata)
