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
from potluck.loops.costs import Costs
from potluck.loops.mathematics import Whom
from potluck.model.carving import Carver, Part
from potluck.model.chain import Chain, trace
from potluck.model.codecs import Sparse
from potluck.model.decoupled.part import ClassGroups
from potluck.model.state import Layout
from potluck.model.submodels import Width, small_model
from potluck.model.submodels.carving import WidthCarver, training_batches
from potluck.model.submodels.narrowing import narrow, pattern
from potluck.model.submodels.parts import Capacity, SmallModel, Whole
from potluck.run.grouping import Shards, group_carver, grouped_chain

__all__ = ["Sizing", "carver_of", "expected", "narrowed", "small_share"]

PIECES = 2000  # of a trace that goes on for ever, to know its mean by


class Sizing:
    """What devices afford of a whole step, and the costs of what they are sent."""

    def __init__(self, job: Job, whole: Costs, carver: Carver | None, small: float | None = None) -> None:
        self._job = job
        self._whole = whole
        self._carver = carver
        self._small = small  # what a model that was made small has of the whole one's MACs
        self._flops = {device.name: float(device.flops) for device in job.fleet.members}
        self._on = lru_cache(maxsize=4096)(whole.on)

    def affordable(self, device: str) -> float:
        """The share of a whole step that fits into a mini-batch's slot, at nominal speed."""
        size, slot = self._job.rounds.batching.size_for(2**40), self._job.rounds.slot
        fastest = self._whole.on(max(self._flops.values())).step(size)
        return (float(slot) if slot is not None else fastest) / self._whole.on(self._flops[device]).step(size)

    def costs(self, whom: Whom) -> Costs:
        """Of what is pulled, trained and pushed in a turn; mini-batches that choose less pay a share of it."""
        part = None if self._carver is None else self._carver.select(whom)
        flops = self._flops[whom.device]
        if part is None:
            return self._on(flops)
        return self._of(part).on(flops)

    def share(self, whom: Whom) -> float | None:
        """The share of the whole model's MACs that a turn trains or its mini-batches choose from; None is all."""
        if self._small is not None or self._carver is None:
            return self._small
        return self._carver.share(whom)

    def _of(self, part: Part) -> Costs:
        forward = [2.0 * macs for macs in part.macs]
        if self._carver is not None and self._carver.chooses:
            forward = list(self._whole.forward_flop)  # a choice's share is one of the whole model
        pull = [part.layout.segment_bytes(layer, layer) for layer in range(part.layout.layers)]
        push = []
        for layer in range(part.layout.layers):
            params, buffers = part.layout.slices(layer, layer)
            kept = (buffers.stop - buffers.start) * part.layout.itemsize
            push.append(self._job.rounds.codec.nbytes(params.stop - params.start, part.layout.itemsize) + kept)
        trained = [bound > 0 for bound in part.layout.param_bounds[1:]]  # nothing goes back into frozen first layers
        return Costs(forward, [2 * flop * here for flop, here in zip(forward, trained, strict=True)], pull, push)


def narrowed(job: Job, chain: Chain, train: Samples | None = None) -> Chain:
    """The model itself, made smaller for everyone or taken apart by classes where the job says so."""
    submodel = job.rounds.submodel
    if isinstance(submodel, ClassGroups):
        return grouped_chain(job, submodel, chain, train)
    if not isinstance(submodel, SmallModel):
        return chain
    width = Width(chain)
    counts = submodel.size(width)
    hollow = any(param.is_meta for param in chain.module.parameters())
    module = narrow(width, pattern(width), counts) if hollow else small_model(width, counts)
    return trace(module, chain.shape, dtype=chain.dtype)


def small_share(job: Job, chain: Chain, whole: Chain) -> float | None:
    """What a model that was made small for everyone costs of the whole one's MACs."""
    if not isinstance(job.rounds.submodel, SmallModel):
        return None
    return sum(layer.macs for layer in chain.layers) / sum(layer.macs for layer in whole.layers)


def carver_of(
    job: Job,
    chain: Chain,
    layout: Layout,
    affordable: Callable[[str], float],
    train: Samples | None,
    shards: Shards | None = None,
) -> Carver | None:
    """Who cuts sub-models out of this model; None where everyone trains the whole of it."""
    submodel = job.rounds.submodel
    if isinstance(submodel, Whole | SmallModel) and not submodel.static:
        return None
    if job.rounds.codec.begin() is not None and submodel.per_round:
        raise SettingError(
            "rounds.codec",
            "what this codec holds back cannot follow parts of the model that change from round to round",
        )
    if submodel.unmoved_is_untrained and isinstance(job.rounds.codec, Sparse):
        raise SettingError("rounds.codec", "leaves out entries, so that nobody sees which were trained (`mean`)")
    if job.rounds.transfer.ahead:
        raise SettingError("rounds.transfer", "duplex transfers are for whole models")
    if isinstance(submodel, ClassGroups):
        return group_carver(job, submodel, chain, layout, train, shards)
    carver = submodel.begin(Width(chain), job.seed)
    speeds = {device.name: device.speed for device in job.fleet.members}

    def capacity(device: str) -> float:
        return affordable(device) * expected(speeds[device], submodel.capacity)

    return WidthCarver(carver, layout, capacity, lambda: () if train is None else training_batches(train))


@lru_cache(maxsize=1024)
def expected(speed: Trace, capacity: Capacity) -> float:
    """The share of its nominal speed that a device is taken to have, by whoever decides ahead of time."""
    if capacity == "nominal":
        return 1.0
    start, total, least = 0.0, 0.0, math.inf
    for until, level in islice(speed.pieces(np.random.default_rng(0)), PIECES):
        least = min(least, level)
        if until == math.inf:  # what holds for ever is the mean
            return level if capacity == "mean" else least
        total, start = total + level * (until - start), until
    return total / start if capacity == "mean" else least
