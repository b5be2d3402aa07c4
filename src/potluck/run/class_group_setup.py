"""A job whose devices train by class groups: the model taken apart, who holds what, and batches of own and other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck import seeds
from potluck.data import Dataset
from potluck.data.data_splits import Split
from potluck.data.overlapping_splits import ClassGroupSplit
from potluck.data.scrambled_samples import ScrambledSamples
from potluck.errors import SettingError
from potluck.job import Job
from potluck.loops.backends import LocalBatches
from potluck.loops.batch_source import ShardBatchSource
from potluck.loops.messages import Invite
from potluck.loops.node import Node
from potluck.loops.settings import Rounds
from potluck.model.decoupled.class_groups import PATH, ClassGroups, LabelledSamples
from potluck.model.decoupled.group_extractor import Batches, Counts, GroupExtractor
from potluck.model.decoupled.group_loss import expected_class_counts
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.submodels.width_extractor import training_batches
from potluck.task import TaskSettings

__all__ = [
    "BalancedBatchSource",
    "GeneratedNegativesSource",
    "Shards",
    "build_group_extractor",
    "build_grouped_chain",
    "build_held_source",
    "calibration_indices",
    "resolve_split",
]

Indices = npt.NDArray[np.int64]
Shards = Mapping[str, Indices]


def build_grouped_chain(job: Job, part: ClassGroups, chain: LayerChain, samples: LabelledSamples | None) -> LayerChain:
    """The network that the coordinator holds."""
    if isinstance(job.task, TaskSettings) and job.task.loss != "cross-entropy":
        raise SettingError("task.loss", "class groups are for classes; use 'cross-entropy'")
    if job.stream is not None:
        raise SettingError("stream", "class groups need data that is there from the start; leave this table out")
    return trace_layers(part.build_grouped(chain, samples, job.seed), chain.shape, dtype=chain.dtype)


def resolve_split(job: Job, chain: LayerChain) -> Split:
    """The job's split, which gives each device the samples of the groups that it trains."""
    split, names = job.split, [device.name for device in job.fleet.members]
    if not isinstance(split, ClassGroupSplit):
        return split
    if not isinstance(chain.module, GroupedNetwork):
        return split.for_devices(names)
    assert isinstance(job.rounds.submodel, ClassGroups)
    groups = chain.module.spec.groups
    return split.for_trained_groups(groups, job.rounds.submodel.groups_by_device(names, len(groups)))


def build_group_extractor(
    job: Job,
    part: ClassGroups,
    chain: LayerChain,
    layout: WeightLayout,
    samples: LabelledSamples | None,
    shards: Shards | None,
) -> GroupExtractor:
    """Who sends each device its groups; those that its samples cannot train are left out."""
    assert isinstance(chain.module, GroupedNetwork)
    held = part.groups_by_device([device.name for device in job.fleet.members], len(chain.module.spec.groups))
    if samples is None or shards is None:
        return GroupExtractor(chain, layout, held)
    labels, groups = samples.labels, chain.module.spec.groups
    counts: dict[str, Counts] = {}
    fitting: dict[str, tuple[int, ...]] = {}
    for device, wanted in held.items():
        present = set(np.unique(labels[shards[device]]).tolist())
        alone = part.negatives == "generated"
        fitting[device] = tuple(
            group for group in wanted if _is_group_trainable(groups[group], present, chain.module, alone)
        )
        if not fitting[device]:
            raise SettingError(
                f"rounds.submodel.held.{device}", _untrainable_reason(device, wanted, chain.module, present)
            )
        own = [label for group in fitting[device] for label in groups[group]]
        counts[device] = expected_class_counts(labels, own, shards[device])
        if alone:
            counts[device] = _counts_with_generated(counts[device], own, chain.module.spec.class_count)
    return GroupExtractor(chain, layout, fitting, counts, _calibration_batches(job, part, samples), part.extent)


def _counts_with_generated(counts: Counts, own: list[int], classes: int) -> Counts:
    mine = {label: counts[label] for label in own if label in counts}
    return {**mine, classes: sum(mine.values())}


def _is_group_trainable(own: tuple[int, ...], present: set[int], grouped: GroupedNetwork, alone: bool) -> bool:
    """Is there something to learn, and something to tell it from (or can that be made up)?"""
    enough = alone or len(own) == grouped.spec.class_count
    return not present.isdisjoint(own) and (enough or not present <= set(own))


def _untrainable_reason(device: str, wanted: tuple[int, ...], grouped: GroupedNetwork, present: set[int]) -> str:
    own = {label for group in wanted for label in grouped.spec.groups[group]}
    if present.isdisjoint(own):
        return f"{device} has no sample of the classes {sorted(own)}; give it other groups, or split the data otherwise"
    return (
        f"{device} has samples of its own classes {sorted(own)} only, nothing to tell them from;"
        " give it samples of others, as split = {kind = 'class-groups', rest = 1.0} does,"
        " or let it make some up: negatives = 'generated'"
    )


def calibration_indices(job: Job, total: int) -> Indices:
    """The samples, of so many, that calibrate and that nobody trains on; drawn by lot, none where nobody asked."""
    part = job.rounds.submodel
    if not isinstance(part, ClassGroups) or not part.held_out:
        return np.zeros(0, np.int64)
    if 2 * part.calibration > total:
        raise SettingError(
            f"{PATH}.calibration",
            f"{part.calibration} of {total} samples are too many to hold out of training; take at most half of them,"
            " or train on them too: held_out = false",
        )
    return np.sort(seeds.child_generator(job.seed, "calibration").permutation(total)[: part.calibration])


def _calibration_batches(job: Job, part: ClassGroups, samples: Any) -> Callable[[], Batches] | None:
    """The samples to calibrate with, none where nobody asked."""
    if not part.calibration:
        return None
    chosen = calibration_indices(job, len(samples))
    if not len(chosen):
        return lambda: training_batches(samples, 1, part.calibration)
    return lambda: [samples.batch(chosen)]


def build_held_source(
    node: Node, rounds: Rounds, shard: Indices, data: Dataset | None, carver: SubmodelExtractor | None
) -> ShardBatchSource:
    """The supply of a device that has its data, balanced where it trains by class groups."""
    if data is None or not isinstance(carver, GroupExtractor):
        return ShardBatchSource(node, rounds, shard)
    assert isinstance(rounds.submodel, ClassGroups)
    own = carver.device_classes(node.name)
    if rounds.submodel.negatives == "generated":
        return GeneratedNegativesSource(node, rounds, shard, data, own)
    return BalancedBatchSource(node, rounds, shard, data.train.labels, own)


class BalancedBatchSource(ShardBatchSource):
    """All samples of a device's own classes, and in every pass as many others of those that it has, drawn anew."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, labels: Indices, own: tuple[int, ...]) -> None:
        mine = np.isin(labels[shard], own)
        self._own, self._others = shard[mine], shard[~mine]
        super().__init__(node, settings, shard[: len(self._own) + min(len(self._own), len(self._others))])

    def ready_batches(self, invite: Invite) -> LocalBatches:
        """As from a shard that is mixed anew; its size is always the same."""
        plain = super().ready_batches(invite)
        batching, count, rng = self._settings.batching, invite.count, self._node.rng
        passes = self._settings.local.batches_per_turn(batching.batches_per_epoch(len(self._shard)))
        pass_number = count // max(1, len(self._shard) // self.expected_batch_size()) if passes is None else count

        def draw_batches() -> list[Indices]:
            others = rng("negatives", pass_number).permutation(self._others)[: len(self._own)]
            return batching.choose_batches(np.concatenate([self._own, others]), count, passes, rng)

        return plain._replace(batches=draw_batches)


class GeneratedNegativesSource(ShardBatchSource):
    """All samples of a device's own classes, and for each of them one that is made of it; no others."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, data: Dataset, own: tuple[int, ...]) -> None:
        mine = shard[np.isin(data.train.labels[shard], own)]
        super().__init__(node, settings, np.concatenate([mine, -1 - mine]))
        self._samples = ScrambledSamples(data.train, len(data.classes))

    def ready_batches(self, invite: Invite) -> LocalBatches:
        return super().ready_batches(invite)._replace(samples=self._samples)
