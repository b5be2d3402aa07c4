"""How much of the model each device gets: what it affords, and what a turn costs it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import islice

import numpy as np

from potluck.data import Samples
from potluck.errors import SettingError
from potluck.fleet import Trace
from potluck.job import Job
from potluck.loops.backends import TurnIdentity
from potluck.loops.device_costs import DeviceCosts
from potluck.model.codecs import SparseCodec
from potluck.model.decoupled.class_groups import ClassGroups
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor, SubmodelSpec
from potluck.model.submodels import SlimmableModel, build_small_model
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.submodel_parts import Capacity, SmallModel, WholeModel
from potluck.model.submodels.width_extractor import WidthExtractor, training_batches
from potluck.run.class_group_setup import Shards, build_group_extractor, build_grouped_chain

__all__ = [
    "SubmodelSizing",
    "build_extractor",
    "build_trained_chain",
    "expected_speed_fraction",
    "small_model_fraction",
]

PIECES = 2000  # of a trace that goes on for ever, to know its mean by


class SubmodelSizing:
    """What devices afford of a whole step, and the costs of what they are sent."""

    def __init__(
        self, job: Job, whole: DeviceCosts, carver: SubmodelExtractor | None, small: float | None = None
    ) -> None:
        self._job = job
        self._whole = whole
        self._extractor = carver
        self._small_fraction = small  # what a model that was made small has of the whole one's MACs
        self._flops = {device.name: float(device.flops) for device in job.fleet.members}
        self._on = lru_cache(maxsize=4096)(whole.with_speed)

    def affordable_fraction(self, device: str) -> float:
        """The share of a whole step that fits into a mini-batch's slot, at nominal speed."""
        size, slot = self._job.rounds.batching.batch_size_for(2**40), self._job.rounds.slot
        fastest = self._whole.with_speed(max(self._flops.values())).step_s(size)
        return (float(slot) if slot is not None else fastest) / self._whole.with_speed(self._flops[device]).step_s(size)

    def turn_costs(self, whom: TurnIdentity) -> DeviceCosts:
        """Of what is pulled, trained and pushed in a turn; mini-batches that choose less pay a share of it."""
        part = None if self._extractor is None else self._extractor.select_submodel(whom)
        flops = self._flops[whom.device]
        if part is None:
            measured = self._whole.on_device(whom.device)
            return self._on(flops) if measured is self._whole else measured.with_speed(flops)
        costs = self._submodel_costs(part)
        return costs.scaled_like(self._whole, self._whole.on_device(whom.device)).with_speed(flops)

    def macs_fraction(self, whom: TurnIdentity) -> float | None:
        """The share of the whole model's MACs that a turn trains or its mini-batches choose from; None is all."""
        if self._small_fraction is not None or self._extractor is None:
            return self._small_fraction
        return self._extractor.cost_fraction(whom)

    def _submodel_costs(self, part: SubmodelSpec) -> DeviceCosts:
        forward = [2.0 * macs for macs in part.macs]
        if self._extractor is not None and self._extractor.chooses_per_batch:
            forward = list(self._whole.forward_flop)  # a choice's share is one of the whole model
        pull = [part.layout.segment_bytes(layer, layer) for layer in range(part.layout.layer_count)]
        push = []
        for layer in range(part.layout.layer_count):
            params, buffers = part.layout.layer_slices(layer, layer)
            kept = (buffers.stop - buffers.start) * part.layout.itemsize
            push.append(self._job.rounds.codec.encoded_bytes(params.stop - params.start, part.layout.itemsize) + kept)
        trained = [bound > 0 for bound in part.layout.param_bounds[1:]]  # nothing goes back into frozen first layers
        return DeviceCosts(forward, [2 * flop * here for flop, here in zip(forward, trained, strict=True)], pull, push)


def build_trained_chain(job: Job, chain: LayerChain, train: Samples | None = None) -> LayerChain:
    """The model itself, made smaller for everyone or taken apart by classes where the job says so."""
    submodel = job.rounds.submodel
    if isinstance(submodel, ClassGroups):
        return build_grouped_chain(job, submodel, chain, train)
    if not isinstance(submodel, SmallModel):
        return chain
    width = SlimmableModel(chain)
    counts = submodel.largest_counts(width)
    hollow = any(param.is_meta for param in chain.module.parameters())
    module = (
        build_narrow_network(width, width_agnostic_graph(width), counts) if hollow else build_small_model(width, counts)
    )
    return trace_layers(module, chain.shape, dtype=chain.dtype)


def small_model_fraction(job: Job, chain: LayerChain, whole: LayerChain) -> float | None:
    """What a model that was made small for everyone costs of the whole one's MACs."""
    if not isinstance(job.rounds.submodel, SmallModel):
        return None
    return sum(layer.macs for layer in chain.layers) / sum(layer.macs for layer in whole.layers)


def build_extractor(
    job: Job,
    chain: LayerChain,
    layout: WeightLayout,
    affordable: Callable[[str], float],
    train: Samples | None,
    shards: Shards | None = None,
) -> SubmodelExtractor | None:
    """Who cuts sub-models out of this model; None where everyone trains the whole of it."""
    submodel = job.rounds.submodel
    if isinstance(submodel, WholeModel | SmallModel) and not submodel.static:
        return None
    if job.rounds.codec.new_state() is not None and submodel.chooses_per_round:
        raise SettingError(
            "rounds.codec",
            "what this codec holds back cannot follow parts of the model that change from round to round",
        )
    if submodel.averages_changed_only and isinstance(job.rounds.codec, SparseCodec):
        raise SettingError("rounds.codec", "leaves out entries, so that nobody sees which were trained (`mean`)")
    if job.rounds.transfer.drafts_next_round:
        raise SettingError("rounds.transfer", "duplex transfers are for whole models")
    if isinstance(submodel, ClassGroups):
        return build_group_extractor(job, submodel, chain, layout, train, shards)
    carver = submodel.create_sampler(SlimmableModel(chain), job.seed)
    speeds = {device.name: device.speed for device in job.fleet.members}

    def expected_capacity(device: str) -> float:
        return affordable(device) * expected_speed_fraction(speeds[device], submodel.capacity)

    return WidthExtractor(carver, layout, expected_capacity, lambda: () if train is None else training_batches(train))


@lru_cache(maxsize=1024)
def expected_speed_fraction(speed: Trace, capacity: Capacity) -> float:
    """The share of its nominal speed that a device is taken to have, by whoever decides ahead of time."""
    if capacity == "nominal":
        return 1.0
    start, total, least = 0.0, 0.0, math.inf
    for until, level in islice(speed.level_intervals(np.random.default_rng(0)), PIECES):
        least = min(least, level)
        if until == math.inf:  # what holds for ever is the mean
            return level if capacity == "mean" else least
        total, start = total + level * (until - start), until
    return total / start if capacity == "mean" else least
