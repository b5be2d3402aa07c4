"""Where a pipeline may cut, and what crosses there.

Between two layers everything that was made before and is used after crosses. Tensors are sent. Numbers are not:
a constant is written into the next stage, and the batch size, shapes and the device are read off what arrives.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from potluck.model.costs import size_bytes
from potluck.model.layers import Reuse
from potluck.model.rehearsal import BATCHES, Fact, storage
from potluck.model.tracing import Recording

__all__ = [
    "MOST_CROSSING",
    "Batch",
    "Crossing",
    "Cut",
    "Device",
    "Untold",
    "ambient",
    "crossing",
    "cuts",
    "has_batch",
    "mutated",
    "retell",
]

MOST_CROSSING = 4


@dataclass(frozen=True)
class Crossing:
    """One tensor that crosses a cut: its shape for one sample."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Cut:
    """A place after a layer where a pipeline may cut; bytes are those of one sample, one way."""

    after: int
    crossing: tuple[Crossing, ...]
    bytes: int


def cuts(recording: Recording, layer_of: dict[fx.Node, int], ties: Sequence[Reuse]) -> tuple[Cut, ...]:
    """All legal cuts, from input to output."""
    last = max(layer_of.values())
    tied = {after for tie in ties for after in range(tie.owner, tie.user)}
    found = (_cut(recording, layer_of, after) for after in range(last) if after not in tied)
    return tuple(cut for cut in found if cut is not None)


def crossing(layer_of: dict[fx.Node, int], after: int) -> list[fx.Node]:
    """Nodes made up to a layer and used beyond it, in execution order."""
    return [
        node
        for node, layer in layer_of.items()
        if layer <= after and not ambient(node) and any(layer_of[user] > after for user in node.users)
    ]


def ambient(node: fx.Node) -> bool:
    """Is it found anew wherever it is needed: a parameter, a buffer, the mode?"""
    return node.op == "get_attr" or node.target is operator.not_


def mutated(recording: Recording, nodes: Iterable[fx.Node]) -> set[int]:
    """The storages that these nodes change in place."""
    return {changed for node in nodes for changed in recording.facts[node].mutates}


class Batch:
    """In a retold value: the batch size."""


class Device:
    """In a retold value: the device of what arrives."""


class Untold:
    """In a retold value: this cannot be retold."""


def retell(fact: Fact) -> Any:
    """A number, shape or option as the next stage can write it down itself; Untold if it cannot."""
    return _retell(fact.value, fact.other)


def _retell(value: Any, other: Any) -> Any:
    if isinstance(value, torch.device):
        return Device
    if type(value) is int and (value, other) == BATCHES:
        return Batch
    if isinstance(value, tuple | list) and len(value) == len(other):
        inner = [_retell(*pair) for pair in zip(value, other, strict=True)]
        return Untold if Untold in inner else tuple(inner)
    plain = value is None or isinstance(value, bool | int | float | str | torch.dtype)
    return value if plain and value == other else Untold


def has_batch(fact: Fact) -> bool:
    """Does the batch size stand first in its shape?"""
    pair = (fact.value, fact.other)
    return (
        all(isinstance(made, torch.Tensor) and made.dim() > 0 for made in pair)
        and (
            fact.value.shape[0],
            fact.other.shape[0],
        )
        == BATCHES
    )


def _cut(recording: Recording, layer_of: dict[fx.Node, int], after: int) -> Cut | None:
    facts = recording.facts
    nodes = crossing(layer_of, after)
    sent = [node for node in nodes if isinstance(facts[node].value, torch.Tensor)]
    retold = [retell(facts[node]) for node in nodes if node not in sent]
    if not 1 <= len(sent) <= MOST_CROSSING or Untold in retold:
        return None
    if _asks_batch(retold) and not any(has_batch(facts[node]) for node in sent):
        return None
    later = mutated(recording, (node for node, layer in layer_of.items() if layer > after and node in facts))
    shares = Counter(storage(facts[node].value) for node in sent)
    if any(shares[changed] > 1 for changed in later):
        return None  # two names of one memory, changed later: copies would drift apart
    return Cut(after, tuple(_crossing(node, facts[node]) for node in sent), sum(_bytes(facts[node]) for node in sent))


def _asks_batch(told: Any) -> bool:
    return any(_asks_batch(inner) for inner in told) if isinstance(told, tuple | list) else told is Batch


def _crossing(node: fx.Node, fact: Fact) -> Crossing:
    shape = tuple(fact.value.shape)
    return Crossing(node.name, shape[1:] if has_batch(fact) else shape, str(fact.value.dtype).removeprefix("torch."))


def _bytes(fact: Fact) -> int:
    """What one sample adds; a tensor that does not grow with the batch counts whole."""
    added = size_bytes(fact.other) - size_bytes(fact.value)
    return added if added > 0 else size_bytes(fact.value)
