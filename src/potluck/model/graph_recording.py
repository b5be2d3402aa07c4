"""Records a module's forward as a graph in execution order, with each node's output, in-place changes and cost."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from potluck.errors import ModelError
from potluck.model.flop_counter import iter_tensors, meta_batch
from potluck.model.meta_copy import copy_to_meta
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES, NodeFacts, interpret_graph
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.size_tracer import SizeTracer
from potluck.model.train_eval_graph import merge_mode_graphs

__all__ = ["GraphRecording", "UntraceableError", "record_graph"]


class UntraceableError(Exception):
    """Why a forward cannot be recorded as a graph."""


@dataclass(frozen=True, eq=False)
class GraphRecording:
    """The graph, facts about its nodes, tensors that only the graph holds, and the meta module it was recorded on."""

    graph: fx.Graph
    facts: dict[fx.Node, NodeFacts]
    constants: dict[str, torch.Tensor]
    meta_module: nn.Module
    both_modes: bool


def record_graph(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> GraphRecording:
    """Trace `module` in training mode; UntraceableError if that fails, ModelError if the sample does not fit."""
    meta_module = _copy_module(module).train()
    tracer = SizeTracer(shape, dtype)
    graph = _trace_graph(tracer, meta_module)
    both_modes = merge_mode_graphs(graph, _evaluation_graph(module, shape, dtype))
    facts = _node_facts(meta_module, graph, shape, dtype)
    _hoist_items(graph, facts)
    if tracer.asked_sizes:
        _check_shapes(meta_module, facts, shape, dtype)
    constants = {name: value for name, value in vars(meta_module).items() if name.startswith("_tensor_constant")}
    return GraphRecording(graph, facts, constants, meta_module, both_modes)


def _copy_module(module: nn.Module) -> nn.Module:
    try:
        return copy_to_meta(module)
    except Exception as error:  # a module may hold anything, including what cannot be copied
        raise UntraceableError(f"it cannot be copied: {error_reason(error)}") from error


def _trace_graph(tracer: SizeTracer, meta_module: nn.Module) -> fx.Graph:
    try:
        graph = tracer.trace_graph(meta_module)
    except Exception as error:  # a user's forward may raise anything when given a proxy
        raise UntraceableError(error_reason(error)) from error
    assigned = _assigned_attribute(meta_module)
    if assigned is not None:
        raise UntraceableError(f"its forward assigns to its own attribute {assigned!r}")
    return graph


def _assigned_attribute(meta_module: nn.Module) -> str | None:
    """The path of an attribute to which forward assigned a value, which a graph would lose."""
    for path, module in meta_module.named_modules():
        for name, value in (vars(module) | module._buffers | module._parameters).items():
            if isinstance(value, fx.Proxy):
                return f"{path}.{name}" if path else name
    return None


def _evaluation_graph(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph | None:
    try:
        return _trace_graph(SizeTracer(shape, dtype), _copy_module(module).eval())
    except UntraceableError:
        return None


def _node_facts(
    meta_module: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype
) -> dict[fx.Node, NodeFacts]:
    try:
        return interpret_graph(meta_module, graph, shape, dtype)
    except Exception as error:
        if needs_data(error):
            raise UntraceableError(error_reason(error)) from error
        raise ModelError(f"a sample of shape {shape} does not fit the model: {error_reason(error)}") from error


def _check_shapes(
    meta_module: nn.Module, facts: dict[fx.Node, NodeFacts], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Check that graph and module return the same shapes at a batch size other than the traced one."""
    with ShapeOnlyMode():
        direct = meta_module(meta_batch(shape, PROBE_BATCH_SIZES[1], dtype))
    traced = next(fact.value_at_other_batch for node, fact in facts.items() if node.op == "output")
    if [tensor.shape for tensor in iter_tensors(direct)] != [tensor.shape for tensor in iter_tensors(traced)]:
        raise UntraceableError("the traced graph returns other shapes than the model itself")


def error_reason(error: Exception) -> str:
    """The first line of the error's message."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def needs_data(error: Exception) -> bool:
    """Whether the error is due to meta tensors having no values, rather than to a wrong shape."""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _hoist_items(graph: fx.Graph, facts: dict[fx.Node, NodeFacts]) -> None:
    """Unpack a tuple right where it is made, so that tensors cross a cut and tuples do not."""
    for node in list(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            source, position = node.args
            plain = isinstance(source, fx.Node) and isinstance(position, int | str)
            if plain and isinstance(facts[source].value, tuple | list | dict):
                source.append(node)
