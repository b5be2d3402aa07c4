"""Finds where a pipeline may cut a model, and what crosses there.

Everything computed before a cut and used after it crosses. Tensors are sent. Other values are reproduced in the next
stage: a constant is written into its graph; the batch size, shapes and the device are taken from the tensors received.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from potluck.model.flop_counter import size_bytes
from potluck.model.graph_recording import GraphRecording
from potluck.model.layer_assignment import TiedParameter
from potluck.model.meta_interpreter import PROBE_BATCH_SIZES, NodeFacts, storage_id
from potluck.model.train_eval_graph import choose_by_mode

__all__ = [
    "MAX_CROSSING_TENSORS",
    "BatchSizeMarker",
    "CrossingTensor",
    "CutPoint",
    "InputDeviceMarker",
    "NotReproducible",
    "crossing_nodes",
    "find_cuts",
    "has_batch_dimension",
    "is_ambient",
    "mutated_storages",
    "reproduce_value",
]

MAX_CROSSING_TENSORS = 4


@dataclass(frozen=True)
class CrossingTensor:
    """One tensor that crosses a cut; the shape is that of one sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CutPoint:
    """A legal cut after a layer; bytes are per direction and sample, constant ones per direction and micro-batch."""

    after: int
    crossing: tuple[CrossingTensor, ...]
    bytes: int
    constant_bytes: int = 0


def find_cuts(
    recording: GraphRecording, layer_of: dict[fx.Node, int], ties: Sequence[TiedParameter]
) -> tuple[CutPoint, ...]:
    """All legal cuts, from input to output."""
    last = max(layer_of.values())
    tied = {after for tie in ties for after in range(tie.owner, tie.user)}
    cuts = (_cut_after(recording, layer_of, after) for after in range(last) if after not in tied)
    return tuple(cut for cut in cuts if cut is not None)


def crossing_nodes(layer_of: dict[fx.Node, int], after: int) -> list[fx.Node]:
    """Nodes computed up to a layer and used beyond it, in execution order."""
    return [
        node
        for node, layer in layer_of.items()
        if layer <= after and not is_ambient(node) and any(layer_of[user] > after for user in node.users)
    ]


def is_ambient(node: fx.Node) -> bool:
    """Whether every stage has the value itself: a parameter, a buffer, the mode."""
    return node.op == "get_attr" or node.target in (operator.not_, choose_by_mode)


def mutated_storages(recording: GraphRecording, nodes: Iterable[fx.Node]) -> set[int]:
    """The storages that these nodes change in place."""
    return {changed for node in nodes for changed in recording.facts[node].mutates}


class BatchSizeMarker:
    """In a reproduced value: the batch size."""


class InputDeviceMarker:
    """In a reproduced value: the device of the received tensors."""


class NotReproducible:
    """In a reproduced value: it cannot be reproduced."""


def reproduce_value(fact: NodeFacts) -> Any:
    """A number, shape or option as the next stage can reproduce it; NotReproducible if it cannot."""
    return _reproduce_pair(fact.value, fact.value_at_other_batch)


def _reproduce_pair(value: Any, other: Any) -> Any:
    if isinstance(value, torch.device):
        return InputDeviceMarker
    if type(value) is int and (value, other) == PROBE_BATCH_SIZES:
        return BatchSizeMarker
    if isinstance(value, tuple | list) and len(value) == len(other):
        inner = [_reproduce_pair(*pair) for pair in zip(value, other, strict=True)]
        return NotReproducible if NotReproducible in inner else tuple(inner)
    plain = value is None or isinstance(value, bool | int | float | str | torch.dtype)
    return value if plain and value == other else NotReproducible


def has_batch_dimension(fact: NodeFacts) -> bool:
    """Whether the first dimension of its shape is the batch size."""
    values = (fact.value, fact.value_at_other_batch)
    if not all(isinstance(value, torch.Tensor) and value.dim() > 0 for value in values):
        return False
    return tuple(value.shape[0] for value in values) == PROBE_BATCH_SIZES


def _cut_after(recording: GraphRecording, layer_of: dict[fx.Node, int], after: int) -> CutPoint | None:
    facts = recording.facts
    nodes = crossing_nodes(layer_of, after)
    sent = [node for node in nodes if isinstance(facts[node].value, torch.Tensor)]
    reproduced = [reproduce_value(facts[node]) for node in nodes if node not in sent]
    if not 1 <= len(sent) <= MAX_CROSSING_TENSORS or NotReproducible in reproduced:
        return None
    if _needs_batch_size(reproduced) and not any(has_batch_dimension(facts[node]) for node in sent):
        return None
    later = mutated_storages(recording, (node for node, layer in layer_of.items() if layer > after and node in facts))
    tensors_on = Counter(storage_id(facts[node].value) for node in sent)
    if any(tensors_on[changed] > 1 for changed in later):
        return None  # two tensors share memory that is changed later: their copies would diverge
    return CutPoint(
        after,
        tuple(_crossing_tensor(node, facts[node]) for node in sent),
        sum(_bytes_per_sample(facts[node]) for node in sent),
        sum(size_bytes(facts[node].value) for node in sent if not _bytes_per_sample(facts[node])),
    )


def _needs_batch_size(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(_needs_batch_size(inner) for inner in value)
    return value is BatchSizeMarker


def _crossing_tensor(node: fx.Node, fact: NodeFacts) -> CrossingTensor:
    shape = tuple(fact.value.shape)
    return CrossingTensor(
        node.name, shape[1:] if has_batch_dimension(fact) else shape, str(fact.value.dtype).removeprefix("torch.")
    )


def _bytes_per_sample(fact: NodeFacts) -> int:
    """The bytes that one sample adds; none to a tensor that does not grow with the batch."""
    return max(0, size_bytes(fact.value_at_other_batch) - size_bytes(fact.value))
