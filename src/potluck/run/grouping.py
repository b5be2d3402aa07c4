"""A job whose devices train by class groups: the model taken apart, who holds what, and batches of own and other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.data import Dataset
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
from potluck.model.decoupled.part import ClassGroups, Labelled
from potluck.model.state import Layout
from potluck.model.submodels.carving import training_batches
from potluck.task import TaskSettings

__all__ = ["Balanced", "Shards", "group_carver", "grouped_chain", "held"]

Indices = npt.NDArray[np.int64]
Shards = Mapping[str, Indices]


def grouped_chain(job: Job, part: ClassGroups, chain: Chain, samples: Labelled | None) -> Chain:
    """The network that the coordinator holds."""
    if isinstance(job.task, TaskSettings) and job.task.loss != "cross-entropy":
        raise SettingError("task.loss", "class groups are for classes; use 'cross-entropy'")
    if job.stream is not None:
        raise SettingError("stream", "class groups need data that is there from the start; leave this table out")
    return trace(part.grouped(chain, samples, job.seed), chain.shape, dtype=chain.dtype)


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
        fitting[device] = tuple(group for group in wanted if _trainable(groups[group], present, chain.module))
        if not fitting[device]:
            raise SettingError(f"rounds.submodel.held.{device}", _why(device, wanted, chain.module, present))
        own = [label for group in fitting[device] for label in groups[group]]
        counts[device] = counts_of(labels, own, shards[device])
    return GroupCarver(chain, layout, fitting, counts, _held_out(samples, part.calibration))


def _trainable(own: tuple[int, ...], present: set[int], grouped: Grouped) -> bool:
    """Is there something to learn, and something to tell it from?"""
    everything = len(own) == grouped.plan.classes
    return not present.isdisjoint(own) and (everything or not present <= set(own))


def _why(device: str, wanted: tuple[int, ...], grouped: Grouped, present: set[int]) -> str:
    own = {label for group in wanted for label in grouped.plan.groups[group]}
    if present.isdisjoint(own):
        return f"{device} has no sample of the classes {sorted(own)}; give it other groups, or split the data otherwise"
    return (
        f"{device} has samples of its own classes {sorted(own)} only, nothing to tell them from;"
        " give it samples of others, as split = {kind = 'class-groups', rest = 1.0} does"
    )


def _held_out(samples: Any, count: int) -> Any:
    """The samples to calibrate with, none where nobody asked."""
    if not count:
        return None

    def batches() -> Batches:
        return training_batches(samples, 1, count)

    return batches


def held(node: Node, rounds: Rounds, shard: Indices, data: Dataset | None, carver: Carver | None) -> Held:
    """The supply of a device that has its data, balanced where it trains by class groups."""
    if data is None or not isinstance(carver, GroupCarver):
        return Held(node, rounds, shard)
    return Balanced(node, rounds, shard, data.train.labels, carver.own(node.name))


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
