"""Any module's forward as a graph in execution order, with what each node makes, changes and costs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx, nn

from potluck.errors import ModelError
from potluck.model.costs import sample, tensors
from potluck.model.hollow import Hollow
from potluck.model.modes import blend
from potluck.model.rehearsal import BATCHES, Fact, rehearse
from potluck.model.skeleton import skeleton
from potluck.model.tracer import Tracer

__all__ = ["Recording", "Untraceable", "record"]


class Untraceable(Exception):  # noqa: N818 (an outcome, caught one call up)
    """Why a forward cannot be written down as a graph."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A forward written down: the graph, its facts, tensors that only the graph holds, and the skeleton it runs on."""

    graph: fx.Graph
    facts: dict[fx.Node, Fact]
    constants: dict[str, torch.Tensor]
    bones: nn.Module
    both_modes: bool


def record(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Recording:
    """Trace `module` as it trains; Untraceable says why not, ModelError that the sample does not fit."""
    bones = _copied(module).train()
    tracer = Tracer(shape, dtype)
    graph = _graph(tracer, bones)
    both_modes = blend(graph, _evaluated(module, shape, dtype))
    facts = _facts(bones, graph, shape, dtype)
    _hoist_items(graph, facts)
    if tracer.asked:
        _compare(bones, facts, shape, dtype)
    constants = {name: value for name, value in vars(bones).items() if name.startswith("_tensor_constant")}
    return Recording(graph, facts, constants, bones, both_modes)


def _copied(module: nn.Module) -> nn.Module:
    try:
        return skeleton(module)
    except Exception as error:  # a module may hold anything, also what cannot be copied
        raise Untraceable(f"it cannot be copied: {reason(error)}") from error


def _graph(tracer: Tracer, bones: nn.Module) -> fx.Graph:
    try:
        graph = tracer.write_down(bones)
    except Exception as error:  # whatever a user's forward may raise when it meets a proxy
        raise Untraceable(reason(error)) from error
    kept = _kept(bones)
    if kept is not None:
        raise Untraceable(f"its forward assigns to its own attribute {kept!r}")
    return graph


def _kept(bones: nn.Module) -> str | None:
    """The name of an attribute in which forward has left something that a graph would lose."""
    for path, part in bones.named_modules():
        for name, value in (vars(part) | part._buffers | part._parameters).items():
            if isinstance(value, fx.Proxy):
                return f"{path}.{name}" if path else name
    return None


def _evaluated(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Graph | None:
    try:
        return _graph(Tracer(shape, dtype), _copied(module).eval())
    except Untraceable:
        return None


def _facts(bones: nn.Module, graph: fx.Graph, shape: tuple[int, ...], dtype: torch.dtype) -> dict[fx.Node, Fact]:
    try:
        return rehearse(bones, graph, shape, dtype)
    except Exception as error:
        if needs_data(error):
            raise Untraceable(reason(error)) from error
        raise ModelError(f"a sample of shape {shape} does not fit the model: {reason(error)}") from error


def _compare(bones: nn.Module, facts: dict[fx.Node, Fact], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """The graph must give what the module gives at a batch size that it was not traced at."""
    with Hollow():
        whole = bones(sample(shape, BATCHES[1], dtype))
    traced = next(fact.other for node, fact in facts.items() if node.op == "output")
    if [tensor.shape for tensor in tensors(whole)] != [tensor.shape for tensor in tensors(traced)]:
        raise Untraceable("the traced graph gives other shapes than the model itself")


def reason(error: Exception) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def needs_data(error: Exception) -> bool:
    """Did it fail because meta tensors hold no numbers, rather than because of a wrong shape?"""
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _hoist_items(graph: fx.Graph, facts: dict[fx.Node, Fact]) -> None:
    """Take a tuple apart where it is made, so that tensors cross a cut and tuples do not."""
    for node in list(graph.nodes):
        if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem":
            source, position = node.args
            plain = isinstance(source, fx.Node) and isinstance(position, int | str)
            if plain and isinstance(facts[source].value, tuple | list | dict):
                source.append(node)
