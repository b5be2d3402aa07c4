"""Batches for a device that trains some classes: as many samples of other classes as of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from potluck.data import Dataset
from potluck.data.scrambled_samples import ScrambledSamples
from potluck.loops.backends import LocalBatches
from potluck.loops.batch_source import ShardBatchSource
from potluck.loops.messages import Invite
from potluck.loops.node import Node
from potluck.loops.settings import Rounds
from potluck.model.submodel_context import ClassBalance

__all__ = ["BalancedBatchSource", "GeneratedNegativesSource", "build_balanced_source"]

Indices = npt.NDArray[np.int64]


def build_balanced_source(
    node: Node, rounds: Rounds, shard: Indices, data: Dataset, balance: ClassBalance
) -> ShardBatchSource:
    """The source that a device's class balance asks for."""
    if balance.negatives == "generated":
        return GeneratedNegativesSource(node, rounds, shard, data, balance.own_classes)
    return BalancedBatchSource(node, rounds, shard, data.train.labels, balance.own_classes)


class BalancedBatchSource(ShardBatchSource):
    """All samples of a device's own classes, and in every pass as many of its others, drawn again each time."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, labels: Indices, own: tuple[int, ...]) -> None:
        is_own = np.isin(labels[shard], own)
        self._own, self._others = shard[is_own], shard[~is_own]
        super().__init__(node, settings, shard[: len(self._own) + min(len(self._own), len(self._others))])

    def ready_batches(self, invite: Invite) -> LocalBatches:
        """As from a shard of constant size whose content changes with every pass."""
        plain = super().ready_batches(invite)
        batching, count, rng = self._settings.batching, invite.count, self._node.rng
        passes = self._settings.local.batches_per_turn(batching.batches_per_epoch(len(self._shard)))
        pass_number = count // max(1, len(self._shard) // self.expected_batch_size()) if passes is None else count

        def draw_batches() -> list[Indices]:
            others = rng("negatives", pass_number).permutation(self._others)[: len(self._own)]
            return batching.choose_batches(np.concatenate([self._own, others]), count, passes, rng)

        return plain._replace(batches=draw_batches)


class GeneratedNegativesSource(ShardBatchSource):
    """All samples of a device's own classes, and for each of them one that is generated from it; no others."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, data: Dataset, own: tuple[int, ...]) -> None:
        own_samples = shard[np.isin(data.train.labels[shard], own)]
        super().__init__(node, settings, np.concatenate([own_samples, -1 - own_samples]))
        self._samples = ScrambledSamples(data.train, len(data.classes))

    def ready_batches(self, invite: Invite) -> LocalBatches:
        return super().ready_batches(invite)._replace(samples=self._samples)
