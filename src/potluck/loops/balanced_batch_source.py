"""Batches for a device that trains some classes: as many samples of other classes as of its own."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from potluck.data import Dataset
from potluck.data.samples import Indices, SampleSet
from potluck.loops.backends import LocalBatches
from potluck.loops.batch_source import ShardBatchSource
from potluck.loops.messages import Invite
from potluck.loops.node import Node
from potluck.loops.settings import Rounds
from potluck.model.submodel_context import ClassBalance

__all__ = [
    "BalancedBatchSource",
    "GeneratedNegativesSource",
    "LimitedBatchSource",
    "ScrambledSamples",
    "build_balanced_source",
    "scramble_inputs",
]


_MAX_BLOCKS = 4  # per axis


class ScrambledSamples:
    """A device's samples by index, and the scrambled version of sample i by index −1 − i, labelled as no class."""

    needs_rng = True

    def __init__(self, own: SampleSet, label: int) -> None:
        self._own = own
        self._label = label

    def __len__(self) -> int:
        return 2 * len(self._own)

    def batch(self, indices: Indices, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        made = torch.from_numpy(indices < 0)
        inputs, labels = self._own.batch(np.where(indices < 0, -1 - indices, indices), rng)
        if bool(made.any()):
            inputs[made] = scramble_inputs(inputs[made], rng)
        return inputs, labels.masked_fill(made, self._label)


def scramble_inputs(inputs: Tensor, rng: np.random.Generator) -> Tensor:
    """Shuffle blocks along each spatial axis (or the feature axis), taking every second block from another sample.

    Local structure survives, the whole does not."""
    others = inputs[torch.from_numpy(rng.permutation(len(inputs)))]
    for side in range(2 if inputs.ndim > 2 else 1, inputs.ndim):
        size = inputs.shape[side]
        if size > 1:
            inputs = torch.cat(_shuffled_blocks(inputs, others, side, _random_edges(size, rng), rng), dim=side)
    return inputs


def _random_edges(size: int, rng: np.random.Generator) -> list[int]:
    blocks = int(rng.integers(2, min(_MAX_BLOCKS, size) + 1))
    return [0, *sorted((1 + rng.choice(size - 1, blocks - 1, replace=False)).tolist()), size]


def _shuffled_blocks(
    inputs: Tensor, others: Tensor, side: int, edges: list[int], rng: np.random.Generator
) -> list[Tensor]:
    order = rng.permutation(len(edges) - 1)
    if (order == np.arange(len(order))).all():
        order = order[::-1]
    return [
        (others if block % 2 else inputs).narrow(side, edges[block], edges[block + 1] - edges[block])
        for block in order.tolist()
    ]


def build_balanced_source(
    node: Node, rounds: Rounds, shard: Indices, data: Dataset, balance: ClassBalance
) -> ShardBatchSource:
    """The source that a device's class balance asks for."""
    if balance.negatives == "generated":
        return GeneratedNegativesSource(node, rounds, shard, data, balance)
    return BalancedBatchSource(node, rounds, shard, data.train.labels, balance)


class LimitedBatchSource(ShardBatchSource):
    """Mini-batches of a shard; a turn has at most as many as the balance's limit of samples allows."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, balance: ClassBalance) -> None:
        super().__init__(node, settings, shard)
        self._most_samples = balance.most_samples

    def batches_per_turn(self) -> int | None:
        wanted = super().batches_per_turn()
        if wanted is None or self._most_samples is None:
            return wanted
        return min(wanted, max(1, self._most_samples // self.expected_batch_size()))


class BalancedBatchSource(LimitedBatchSource):
    """All samples of a device's own classes, and in every pass as many of its others, drawn again each time."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, labels: Indices, balance: ClassBalance) -> None:
        is_own = np.isin(labels[shard], balance.own_classes)
        self._own, self._others = shard[is_own], shard[~is_own]
        super().__init__(node, settings, shard[: len(self._own) + min(len(self._own), len(self._others))], balance)

    def ready_batches(self, invite: Invite) -> LocalBatches:
        """As from a shard of constant size whose content changes with every pass."""
        plain = super().ready_batches(invite)
        batching, count, rng = self._settings.batching, invite.count, self._node.rng
        passes = self.batches_per_turn()
        pass_number = count // max(1, len(self._shard) // self.expected_batch_size()) if passes is None else count

        def draw_batches() -> list[Indices]:
            others = rng("negatives", pass_number).permutation(self._others)[: len(self._own)]
            return batching.choose_batches(np.concatenate([self._own, others]), count, passes, rng)

        return plain._replace(batches=draw_batches)


class GeneratedNegativesSource(LimitedBatchSource):
    """All samples of a device's own classes, and for each of them one that is generated from it; no others."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, data: Dataset, balance: ClassBalance) -> None:
        own_samples = shard[np.isin(data.train.labels[shard], balance.own_classes)]
        super().__init__(node, settings, np.concatenate([own_samples, -1 - own_samples]), balance)
        self._samples = ScrambledSamples(data.train, len(data.classes))

    def ready_batches(self, invite: Invite) -> LocalBatches:
        return super().ready_batches(invite)._replace(samples=self._samples)
