"""Records a module's forward as a graph in execution order, with each node's output, in-place changes and cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from potluck.model.execution_graph import record_execution
from potluck.model.execution_recorder import is_transformers_model
from potluck.model.flop_counter import iter_tensors
from potluck.model.input_spec import InputBinding, InputSpec, call_model, misfit_error
from potluck.model.meta_copy import check_copyable, copy_to_meta
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES, NodeFacts, interpret_graph
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.size_tracer import SizeTracer
from potluck.model.train_eval_graph import merge_mode_graphs
from potluck.user_code import describe_user_error

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
    binding: InputBinding


def record_graph(module: nn.Module, inputs: InputSpec) -> GraphRecording:
    """Record `module` in training mode; UntraceableError if that fails, ModelError if the sample does not fit."""
    return _record_executed(module, inputs) if is_transformers_model(module) else _record_traced(module, inputs)


def _record_executed(module: nn.Module, inputs: InputSpec) -> GraphRecording:
    """For code that cannot take proxies: what it calls when it runs on meta tensors."""
    meta_module, evaluated = _copy_module(module).train(), _copy_module(module).eval()
    try:
        graph, constants, binding = record_execution(module, meta_module, inputs)
        both_modes = merge_mode_graphs(graph, record_execution(module, evaluated, inputs)[0])
    except Exception as error:  # a user's forward may raise anything on meta tensors
        raise UntraceableError(describe_user_error(error)) from error
    for name, value in constants.items():
        setattr(meta_module, name, value)
    arguments = [binding.arguments(inputs.meta_batch(size)) for size in PROBE_BATCH_SIZES]
    return GraphRecording(
        graph, interpret_graph(meta_module, graph, arguments), constants, meta_module, both_modes, binding
    )


def _record_traced(module: nn.Module, inputs: InputSpec) -> GraphRecording:
    meta_module = _copy_module(module).train()
    batches = [inputs.meta_batch(size) for size in PROBE_BATCH_SIZES]
    binding = InputBinding.of_inputs(module, batches[0])
    arguments = [binding.arguments(batch) for batch in batches]
    tracer = SizeTracer(binding, arguments)
    graph = _trace_graph(tracer, meta_module)
    both_modes = merge_mode_graphs(graph, _evaluation_graph(module, SizeTracer(binding, arguments)))
    try:
        facts = interpret_graph(meta_module, graph, arguments)
    except Exception as error:  # a user's forward may raise anything
        if needs_data(error):
            raise UntraceableError(describe_user_error(error)) from error
        raise misfit_error(error, inputs) from error
    _hoist_items(graph, facts)
    if tracer.asked_sizes and not tracer.compared_constants:
        _check_shapes(meta_module, facts, batches[1])
    constants = {name: value for name, value in vars(meta_module).items() if name.startswith("_tensor_constant")}
    return GraphRecording(graph, facts, constants, meta_module, both_modes, binding)


def _copy_module(module: nn.Module) -> nn.Module:
    try:
        return copy_to_meta(module)
    except Exception as error:  # a module may hold anything, including what cannot be copied
        check_copyable(module)
        raise UntraceableError(f"it cannot be copied: {describe_user_error(error)}") from error


def _trace_graph(tracer: SizeTracer, meta_module: nn.Module) -> fx.Graph:
    try:
        graph = tracer.trace_graph(meta_module)
    except Exception as error:  # a user's forward may raise anything when given a proxy
        raise UntraceableError(describe_user_error(error)) from error
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


def _evaluation_graph(module: nn.Module, tracer: SizeTracer) -> fx.Graph | None:
    try:
        return _trace_graph(tracer, _copy_module(module).eval())
    except UntraceableError:
        return None


def _check_shapes(meta_module: nn.Module, facts: dict[fx.Node, NodeFacts], batch: Any) -> None:
    """Check that graph and module return the same shapes for `batch`, of a size other than the traced one."""
    try:
        with ShapeOnlyMode():
            direct = call_model(meta_module, batch)
    except Exception as error:
        if needs_data(error):  # its forward looks at values unless it is traced
            return
        raise
    traced = next(fact.value_at_other_batch for node, fact in facts.items() if node.op == "output")
    if [tensor.shape for tensor in iter_tensors(direct)] != [tensor.shape for tensor in iter_tensors(traced)]:
        raise UntraceableError("the traced graph returns other shapes than the model itself")


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
