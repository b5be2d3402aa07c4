"""Any module's forward as a graph in execution order, with what each node makes, changes and costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from potluck.errors import ModelError
from potluck.model.flop_counter import iter_tensors, meta_batch
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import BATCHES, NodeFacts, interpret_graph
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.size_tracer import SizeTracer
from potluck.model.train_eval_graph import merge_mode_graphs

__all__ = ["GraphRecording", "UntraceableError", "record_graph"]


class UntraceableError(Exception):
    """Why a forward cannot be written down as a graph."""


@dataclass(frozen=True, eq=False)
class GraphRecording:
    """A forward written down: the graph, its facts, tensors that only the graph holds, and the skeleton it runs on."""

    graph: fx.Graph
    facts: dict[fx.Node, NodeFacts]
    constants: dict[str, torch.Tensor]
    meta_module: nn.Module
    both_modes: bool


def record_graph(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> GraphRecording:
    """Trace `module` as it trains; Untraceable says why not, ModelError that the sample does not fit."""
    bones = _copy_module(module).train()
    tracer = SizeTracer(shape, dtype)
    graph = _trace_graph(tracer, bones)
    both_modes = merge_mode_graphs(graph, _evaluation_graph(module, shape, dtype))
    facts = _node_facts(bones, graph, shape, dtype)
    _hoist_items(graph, facts)
    if tracer.asked_sizes:
        _check_shapes(bones, facts, shape, dtype)
    constants = {name: value for name, value in vars(bones).items() if name.startswith("_tensor_constant")}
    return GraphRecording(graph, facts, constants, bones, both_modes)


def _copy_module(module: nn.Module) -> nn.Module:
    try:
        return copy_to_meta(module)
    except Exception as error:  # a module may hold anything, also what cannot be copied
        raise UntraceableError(f"it cannot be copied: {error_reason(error)}") from error


def _trace_graph(tracer: SizeTracer, bones: nn.Module) -> fx.Graph:
    try:
        graph = tracer.trace_graph(bones)
    except Exception as error:  # whatever a user's forward may raise when it meets a proxy
        raise UntraceableError(error_reason(error)) from error
    kept = _assigned_attribute(bones)
    if kept is not None:
        raise UntraceableError(f"its forward assigns to its own attribute {kept!r}")
    return graph


def _assigned_attribute(bones: nn.Module) -> str | None:
    """The name of an attribute in which forward has left something that a graph would lose."""
    for path, part in bones.named_modules():
        for name, value in (vars(part) | part._buffers | part._parameters).items():
            if isinstance(value, fx.Proxy):
                return f"{path}.{name}" if path else name
    return None


def _evaluation_graph(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph | None:
    try:
        return _trace_graph(SizeTracer(shape, dtype), _copy_module(module).eval())
    except UntraceableError:
        return None


def _node_facts(
    bones: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype
) -> dict[fx.Node, NodeFacts]:
    try:
        return interpret_graph(bones, graph, shape, dtype)
    except Exception as error:
        if needs_data(error):
            raise UntraceableError(error_reason(error)) from error
        raise ModelError(f"a sample of shape {shape} does not fit the model: {error_reason(error)}") from error


def _check_shapes(
    bones: nn.Module, facts: dict[fx.Node, NodeFacts], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """The graph must give what the module gives at a batch size that it was not traced at."""
    with ShapeOnlyMode():
        whole = bones(meta_batch(shape, BATCHES[1], dtype))
    traced = next(fact.value_at_other_batch for node, fact in facts.items() if node.op == "output")
    if [tensor.shape for tensor in iter_tensors(whole)] != [tensor.shape for tensor in iter_tensors(traced)]:
        raise UntraceableError("the traced graph gives other shapes than the model itself")


def error_reason(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def needs_data(error: Exception) -> bool:
    """Did it fail because meta tensors hold no numbers, rather than because of a wrong shape?"""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _hoist_items(graph: fx.Graph, facts: dict[fx.Node, NodeFacts]) -> None:
    """Take a tuple apart where it is made, so that tensors cross a cut and tuples do not."""
    for node in list(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            source, position = node.args
            plain = isinstance(source, fx.Node) and isinstance(position, int | str)
            if plain and isinstance(facts[source].value, tuple | list | dict):
                source.append(node)
