"""Merges the training and evaluation traces into one graph; flags and numbers that differ depend on the mode."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx

from potluck.errors import ModelError

__all__ = ["choose_by_mode", "merge_mode_graphs"]

NodePairs = dict[fx.Node, fx.Node]


def merge_mode_graphs(training: fx.Graph, evaluation: fx.Graph | None) -> bool:
    """Make the training graph serve both modes (True), or make it refuse to evaluate (False)."""
    try:
        if evaluation is None or len(training.nodes) != len(evaluation.nodes):
            raise _GraphsDiffer
        pairs = dict(zip(evaluation.nodes, training.nodes, strict=True))
        changes = [(ours, *_merge_calls(ours, theirs, pairs)) for theirs, ours in pairs.items()]
    except _GraphsDiffer:
        _TrainingFlagNodes(training).guard_evaluation()
        return False
    flags = _TrainingFlagNodes(training)
    for node, args, kwargs in changes:
        if (args, kwargs) != (node.args, node.kwargs):
            node.args, node.kwargs = flags.insert_flag_nodes(args), flags.insert_flag_nodes(kwargs)
    return True


def choose_by_mode(training: bool, in_training: float, in_evaluation: float) -> float:
    """A number that depends on the mode, such as a dropout rate."""
    return in_training if training else in_evaluation


def refuse_evaluation(training: bool) -> None:
    """Called by graphs that are valid in training only."""
    if not training:
        raise ModelError("the model's forward differs in evaluation mode; evaluate the whole model, not its stages")


class _GraphsDiffer(Exception):  # noqa: N818
    pass


class _TrainingFlag:
    """Stands for `training`, or its negation, until there is a node for it."""

    def __init__(self, when_training: bool) -> None:
        self.when_training = when_training


@dataclass(frozen=True)
class _ModeNumber:
    """Stands for a number that depends on the mode, until there is a node for it."""

    in_training: float
    in_evaluation: float


class _TrainingFlagNodes:
    """The nodes that read the mode, created on first use."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._nodes: dict[bool, fx.Node] = {}

    def insert_flag_nodes(self, value: Any) -> Any:
        """`value` with each flag replaced by its node."""
        if isinstance(value, _TrainingFlag):
            return self._flag_node(value.when_training)
        if isinstance(value, _ModeNumber):
            return self._add_number_node(value)
        if isinstance(value, tuple | list):
            return type(value)(self.insert_flag_nodes(inner) for inner in value)
        if isinstance(value, dict):
            return {key: self.insert_flag_nodes(inner) for key, inner in value.items()}
        return value

    def guard_evaluation(self) -> None:
        """Make the graph raise ModelError in evaluation mode."""
        flag = self._flag_node(True)
        with self._graph.inserting_after(flag):
            self._graph.call_function(refuse_evaluation, (flag,))

    def _flag_node(self, when_training: bool) -> fx.Node:
        if when_training not in self._nodes:
            self._nodes[when_training] = self._add_training_node() if when_training else self._add_negated_node()
        return self._nodes[when_training]

    def _add_number_node(self, number: _ModeNumber) -> fx.Node:
        flag = self._flag_node(True)
        with self._graph.inserting_after(flag):
            return self._graph.call_function(choose_by_mode, (flag, number.in_training, number.in_evaluation))

    def _add_training_node(self) -> fx.Node:
        placeholder = next(node for node in self._graph.nodes if node.op == "placeholder")
        with self._graph.inserting_after(placeholder):
            return self._graph.create_node("get_attr", "training")

    def _add_negated_node(self) -> fx.Node:
        flag = self._flag_node(True)
        with self._graph.inserting_after(flag):
            return self._graph.call_function(operator.not_, (flag,))


def _merge_calls(ours: fx.Node, theirs: fx.Node, pairs: NodePairs) -> tuple[Any, Any]:
    if (ours.op, ours.target) != (theirs.op, theirs.target):
        raise _GraphsDiffer
    return _merge_values(ours.args, theirs.args, pairs), _merge_values(ours.kwargs, theirs.kwargs, pairs)


def _merge_values(ours: Any, theirs: Any, pairs: NodePairs) -> Any:
    """`ours`, with a flag wherever the two differ in a boolean."""
    if isinstance(theirs, fx.Node) and pairs[theirs] is ours:
        return ours
    if isinstance(ours, bool) and isinstance(theirs, bool) and ours != theirs:
        return _TrainingFlag(ours)
    if isinstance(ours, float) and isinstance(theirs, float) and ours != theirs:
        return _ModeNumber(ours, theirs)
    if isinstance(ours, tuple | list) and isinstance(theirs, tuple | list) and len(ours) == len(theirs):
        return type(ours)(_merge_values(*both, pairs) for both in zip(ours, theirs, strict=True))
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return {key: _merge_values(value, theirs[key], pairs) for key, value in ours.items()}
    if isinstance(ours, slice) and isinstance(theirs, slice):
        ends = ((ours.start, theirs.start), (ours.stop, theirs.stop), (ours.step, theirs.step))
        return slice(*(_merge_values(*both, pairs) for both in ends))
    if not isinstance(ours, fx.Node) and type(ours) is type(theirs) and repr(ours) == repr(theirs):
        return ours
    raise _GraphsDiffer
