"""A job whose devices train by class groups: the model taken apart, who holds what, and batches of own and other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck import seeds
from potluck.data import Dataset
from potluck.data.made_up import MadeUp
from potluck.data.shared import OwnGroups
from potluck.data.splits import Split
from potluck.errors import SettingError
from potluck.job import Job
from potluck.loops.mathematics import Share
from potluck.loops.messages import Invite
from potluck.loops.node import Node
from potluck.loops.settings import Rounds
from potluck.loops.supply import Held
from potluck.model.carving import Carver
from potluck.model.chain import Chain, trace
from potluck.model.decoupled.batches import counts_of
from potluck.model.decoupled.carving import Batches, Counts, GroupCarver
from potluck.model.decoupled.grouped import Grouped
from potluck.model.decoupled.part import PATH, ClassGroups, Labelled
from potluck.model.state import Layout
from potluck.model.submodels.carving import training_batches
from potluck.task import TaskSettings

__all__ = ["AgainstMadeUp", "Balanced", "Shards", "fitting_split", "group_carver", "grouped_chain", "held", "held_out"]

Indices = npt.NDArray[np.int64]
Shards = Mapping[str, Indices]


def grouped_chain(job: Job, part: ClassGroups, chain: Chain, samples: Labelled | None) -> Chain:
    """The network that the coordinator holds."""
    if isinstance(job.task, TaskSettings) and job.task.loss != "cross-entropy":
        raise SettingError("task.loss", "class groups are for classes; use 'cross-entropy'")
    if job.stream is not None:
        raise SettingError("stream", "class groups need data that is there from the start; leave this table out")
    return trace(part.grouped(chain, samples, job.seed), chain.shape, dtype=chain.dtype)


def fitting_split(job: Job, chain: Chain) -> Split:
    """The job's split, which gives each device the samples of the groups that it trains."""
    split, names = job.split, [device.name for device in job.fleet.members]
    if not isinstance(split, OwnGroups):
        return split
    if not isinstance(chain.module, Grouped):
        return split.among(names)
    assert isinstance(job.rounds.submodel, ClassGroups)
    groups = chain.module.plan.groups
    return split.as_trained(groups, job.rounds.submodel.holders(names, len(groups)))


def group_carver(
    job: Job,
    part: ClassGroups,
    chain: Chain,
    layout: Layout,
    samples: Labelled | None,
    shards: Shards | None,
) -> GroupCarver:
    """Who sends each device its groups; those that its samples cannot train are left out."""
    assert isinstance(chain.module, Grouped)
    held = part.holders([device.name for device in job.fleet.members], len(chain.module.plan.groups))
    if samples is None or shards is None:
        return GroupCarver(chain, layout, held)
    labels, groups = samples.labels, chain.module.plan.groups
    counts: dict[str, Counts] = {}
    fitting: dict[str, tuple[int, ...]] = {}
    for device, wanted in held.items():
        present = set(np.unique(labels[shards[device]]).tolist())
        alone = part.negatives == "generated"
        fitting[device] = tuple(group for group in wanted if _trainable(groups[group], present, chain.module, alone))
        if not fitting[device]:
            raise SettingError(f"rounds.submodel.held.{device}", _why(device, wanted, chain.module, present))
        own = [label for group in fitting[device] for label in groups[group]]
        counts[device] = counts_of(labels, own, shards[device])
        if alone:
            counts[device] = _against_made_up(counts[device], own, chain.module.plan.classes)
    return GroupCarver(chain, layout, fitting, counts, _calibrating(job, part, samples), part.extent)


def _against_made_up(counts: Counts, own: list[int], classes: int) -> Counts:
    mine = {label: counts[label] for label in own if label in counts}
    return {**mine, classes: sum(mine.values())}


def _trainable(own: tuple[int, ...], present: set[int], grouped: Grouped, alone: bool) -> bool:
    """Is there something to learn, and something to tell it from (or can that be made up)?"""
    enough = alone or len(own) == grouped.plan.classes
    return not present.isdisjoint(own) and (enough or not present <= set(own))


def _why(device: str, wanted: tuple[int, ...], grouped: Grouped, present: set[int]) -> str:
    own = {label for group in wanted for label in grouped.plan.groups[group]}
    if present.isdisjoint(own):
        return f"{device} has no sample of the classes {sorted(own)}; give it other groups, or split the data otherwise"
    return (
        f"{device} has samples of its own classes {sorted(own)} only, nothing to tell them from;"
        " give it samples of others, as split = {kind = 'class-groups', rest = 1.0} does,"
        " or let it make some up: negatives = 'generated'"
    )


def held_out(job: Job, total: int) -> Indices:
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
    return np.sort(seeds.generator(job.seed, "calibration").permutation(total)[: part.calibration])


def _calibrating(job: Job, part: ClassGroups, samples: Any) -> Callable[[], Batches] | None:
    """The samples to calibrate with, none where nobody asked."""
    if not part.calibration:
        return None
    chosen = held_out(job, len(samples))
    if not len(chosen):
        return lambda: training_batches(samples, 1, part.calibration)
    return lambda: [samples.batch(chosen)]


def held(node: Node, rounds: Rounds, shard: Indices, data: Dataset | None, carver: Carver | None) -> Held:
    """The supply of a device that has its data, balanced where it trains by class groups."""
    if data is None or not isinstance(carver, GroupCarver):
        return Held(node, rounds, shard)
    assert isinstance(rounds.submodel, ClassGroups)
    own = carver.own(node.name)
    if rounds.submodel.negatives == "generated":
        return AgainstMadeUp(node, rounds, shard, data, own)
    return Balanced(node, rounds, shard, data.train.labels, own)


class Balanced(Held):
    """All samples of a device's own classes, and in every pass as many others of those that it has, drawn anew."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, labels: Indices, own: tuple[int, ...]) -> None:
        mine = np.isin(labels[shard], own)
        self._own, self._rest = shard[mine], shard[~mine]
        super().__init__(node, settings, shard[: len(self._own) + min(len(self._own), len(self._rest))])

    def at_hand(self, invite: Invite) -> Share:
        """As from a shard that is mixed anew; its size is always the same."""
        plain = super().at_hand(invite)
        batching, count, rng = self._settings.batching, invite.count, self._node.rng
        passes = self._settings.local.passes(batching.per_epoch(len(self._shard)))
        pass_number = count // max(1, len(self._shard) // self.size()) if passes is None else count

        def batches() -> list[Indices]:
            others = rng("negatives", pass_number).permutation(self._rest)[: len(self._own)]
            return batching.choose(np.concatenate([self._own, others]), count, passes, rng)

        return plain._replace(batches=batches)


class AgainstMadeUp(Held):
    """All samples of a device's own classes, and for each of them one that is made of it; no others."""

    def __init__(self, node: Node, settings: Rounds, shard: Indices, data: Dataset, own: tuple[int, ...]) -> None:
        mine = shard[np.isin(data.train.labels[shard], own)]
        super().__init__(node, settings, np.concatenate([mine, -1 - mine]))
        self._samples = MadeUp(data.train, len(data.classes))

    def at_hand(self, invite: Invite) -> Share:
        return super().at_hand(invite)._replace(samples=self._samples)
