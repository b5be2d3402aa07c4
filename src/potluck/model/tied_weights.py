"""Lets a pipeline cut a model between two uses of one weight, such as a token embedding that is the last layer, too.

    stage 1: token embedding ──▶ … ──activations──▶ stage 2 ──▶ … ──activations──▶ stage 3: last layer
                   └────────────────── weight ────────────────────────────────────────────┘

The weight has one owner, the first layer that uses it. It travels from there with the activations, and its gradient
travels back with theirs, so that the owner's gradient is the sum over all uses, exactly as in the whole model. A
frozen weight stays where it is: every stage that uses it has a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from potluck.model.cut_points import find_cuts
from potluck.model.graph_recording import GraphRecording
from potluck.model.layer_assignment import TiedParameter, assign_layers, get_attribute
from potluck.model.layer_chain import LayerChain
from potluck.model.meta_interpreter import NodeFacts

__all__ = ["carry_tied_weights", "uncut_reason"]


def carry_tied_weights(chain: LayerChain) -> LayerChain:
    """The same layers with cuts between the uses of tied weights too; the chain's own graph is changed.

    A weight that anything but a linear layer, an embedding or a function uses again still rules out cuts.
    """
    if chain.recording is None or not chain.tied_parameters:
        return chain
    graph = _TiedGraph(chain.recording, dict(chain.layer_of))
    reuses = assign_layers(chain.recording)[0].reuses  # also those of buffers, which stay where they are
    kept = [
        reuse
        for reuse in reuses
        if reuse not in chain.frozen_reuses and (reuse not in chain.tied_parameters or not graph.carry_weight(reuse))
    ]
    layer_of = {node: graph.layer_of[node] for node in chain.recording.graph.nodes}
    return replace(chain, cuts=find_cuts(chain.recording, layer_of, kept), layer_of=layer_of)


def uncut_reason(chain: LayerChain) -> str | None:
    """Why no pipeline can cut this model; None if one can, or if there is one layer only."""
    if chain.cuts or len(chain.layers) == 1:
        return None
    if not chain.exact:
        return f"it {chain.note}"
    if chain.tied_parameters:
        tie = chain.tied_parameters[0]
        owner, user = (chain.layers[layer].name for layer in (tie.owner, tie.user))
        return f"its layers {owner!r} and {user!r} share {tie.parameter!r}; give each a weight of its own"
    return "too many tensors, or values that are no tensors, cross between its layers"


def pass_weight(weight: torch.Tensor) -> torch.Tensor:
    """The weight as an activation."""
    return weight.view_as(weight)


class _TiedGraph:
    """A recorded graph in which layers come to use the weight that its owner passes on."""

    def __init__(self, recording: GraphRecording, layer_of: dict[fx.Node, int]) -> None:
        self.layer_of = layer_of
        self._graph = recording.graph
        self._facts = recording.facts
        self._module = recording.meta_module
        self._passing: dict[str, fx.Node] = {}

    def carry_weight(self, tie: TiedParameter) -> bool:
        """Make a later layer use the passed weight; False if that is not possible."""
        weight = get_attribute(self._module, tie.parameter)
        nodes = [node for node, layer in self.layer_of.items() if layer == tie.user and node.op != "get_attr"]
        calls = [node for node in nodes if node.op == "call_module" and self._has_parameter(node, weight)]
        if not all(self._is_replaceable(node) for node in calls):
            return False
        for node in calls:
            self._use_function(node)
        for node in nodes:
            for source in node.all_input_nodes:
                if source.op == "get_attr" and get_attribute(self._module, str(source.target)) is weight:
                    node.replace_input_with(source, self._passing_node(tie))
        return True

    def _has_parameter(self, node: fx.Node, weight: object) -> bool:
        return any(parameter is weight for parameter in self._module.get_submodule(str(node.target)).parameters())

    def _is_replaceable(self, node: fx.Node) -> bool:
        module = self._module.get_submodule(str(node.target))
        return type(module) in FUNCTIONAL_CALLS and len(node.args) == 1 and not node.kwargs

    def _use_function(self, node: fx.Node) -> None:
        """Turn the call of a module into that of a function of its parameters."""
        module = self._module.get_submodule(str(node.target))
        function, options = FUNCTIONAL_CALLS[type(module)](module)
        names = [name for name in ("weight", "bias") if getattr(module, name, None) is not None]
        parameters = [self._add_attribute(f"{node.target}.{name}", node) for name in names]
        node.op, node.target = "call_function", function
        node.args, node.kwargs = (node.args[0], *parameters), options

    def _passing_node(self, tie: TiedParameter) -> fx.Node:
        """The node that passes a weight on from its owner, shared by all later uses."""
        if tie.parameter not in self._passing:
            nodes = [node for node, layer in self.layer_of.items() if layer == tie.owner and node.op != "placeholder"]
            weight = self._add_attribute(tie.parameter, next(node for node in self._graph.nodes if node in nodes))
            with self._graph.inserting_after(weight):
                self._passing[tie.parameter] = self._graph.call_function(pass_weight, (weight,))
            self._describe_node(self._passing[tie.parameter], self._facts[weight].value, tie.owner)
        return self._passing[tie.parameter]

    def _add_attribute(self, path: str, before: fx.Node) -> fx.Node:
        with self._graph.inserting_before(before):
            attribute = self._graph.create_node("get_attr", path)
        self._describe_node(attribute, get_attribute(self._module, path), self.layer_of[before])
        return attribute

    def _describe_node(self, node: fx.Node, value: Any, layer: int) -> None:
        self._facts[node] = NodeFacts(value, value, frozenset(), 0)
        self.layer_of[node] = layer


Call = tuple[Callable[..., Any], dict[str, Any]]


def _linear_call(linear: nn.Linear) -> Call:
    return functional.linear, {}


def _embedding_call(embedding: nn.Embedding) -> Call:
    names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    return functional.embedding, {name: getattr(embedding, name) for name in names}


FUNCTIONAL_CALLS: dict[type[nn.Module], Callable[[Any], Call]] = {
    nn.Linear: _linear_call,
    nn.Embedding: _embedding_call,
}
