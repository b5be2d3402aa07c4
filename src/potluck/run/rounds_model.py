"""The model that a job of rounds trains: adapted by its sub-model part, its costs, and each device's samples.

Every method-specific decision is a hook of the sub-model part; this module calls the hooks in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from potluck import seeds
from potluck.data import Dataset
from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.turn_sizing import Shards, TurnSizing
from potluck.model.class_skew import DeviceSkewCorrection, NoSkewCorrection, class_frequencies
from potluck.model.codecs import PowerSgdCodec, SparseCodec
from potluck.model.layer_chain import LayerChain
from potluck.model.local_training import LocalSteps
from potluck.model.model_state import WeightLayout
from potluck.model.moment_buffers import add_moment_buffers
from potluck.model.submodel_context import LabelledSamples, SubmodelContext, TrainedModel
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.training_costs import BACKWARD_PER_FORWARD, forward_flops, pull_bytes, push_bytes
from potluck.run.device_memory import MemoryModel
from potluck.run.measured_costs import check_profiles, measured_work
from potluck.run.stand_in import stand_in_scale
from potluck.task import TaskSettings

__all__ = [
    "RoundsModel",
    "build_extractor",
    "build_memory_model",
    "build_rounds_model",
    "build_skew_correction",
    "split_into_shards",
    "submodel_context",
]


class RoundsModel(NamedTuple):
    """The trained model, and the job without `auto`."""

    job: Job
    chain: LayerChain
    layout: WeightLayout
    costs: DeviceCosts
    whole_fraction: float | None  # of the whole model's MACs; None where it is the whole model


def submodel_context(job: Job, samples: LabelledSamples | None) -> SubmodelContext:
    """What sub-model parts may know of a job."""
    rounds = job.rounds
    return SubmodelContext(
        devices=job.fleet.members,
        seed=job.seed,
        batch_size=rounds.batching.batch_size_for(2**40),
        slot_s=None if rounds.slot is None else float(rounds.slot),
        pretrained=job.start is not None,
        streaming=job.stream is not None,
        stateful_codec=rounds.codec.new_state() is not None,
        loss=job.task.loss if isinstance(job.task, TaskSettings) else None,
        samples=samples,
        assumed_samples=job.samples,
    )


def build_rounds_model(job: Job, whole: LayerChain, context: SubmodelContext) -> RoundsModel:
    """Resolve the job's sub-model part and let it adapt the whole model."""
    check_profiles(job, whole)
    part = job.rounds.submodel.resolve(context, whole)
    if part != job.rounds.submodel:
        job = replace(job, rounds=replace(job.rounds, submodel=part))
    chain = part.adapt_model(context, whole)
    layout = _build_layout(chain, job)
    return RoundsModel(job, chain, layout, _layer_costs(job, chain, layout, whole), _whole_fraction(chain, whole))


def build_extractor(model: RoundsModel, context: SubmodelContext, shards: Shards | None) -> SubmodelExtractor | None:
    """What cuts sub-models out of the trained model; None where every device trains all of it."""
    part, rounds, devices = model.job.rounds.submodel, model.job.rounds, model.job.fleet.members
    by_speed, memory = TurnSizing(rounds, devices, model.costs).affordable_fraction, build_memory_model(model)
    members = {device.name: device for device in devices}

    def affordable(name: str) -> float:
        samples = rounds.batching.batch_size_for(2**40 if shards is None else len(shards[name]))
        return min(by_speed(name), memory.affordable_fraction(members[name], samples))

    extractor = part.build_extractor(context, TrainedModel(model.chain, model.layout, affordable, shards))
    if extractor is None:
        return None
    if rounds.codec.new_state() is not None and part.chooses_per_round:
        raise SettingError(
            "rounds.codec",
            "keeps what it leaves out for later, which does not fit sub-models that change every round; use another",
        )
    if isinstance(rounds.codec, PowerSgdCodec):
        raise SettingError("rounds.codec", "has a factor for every matrix of the whole model, not of sub-models")
    if part.averages_changed_only and isinstance(rounds.codec, SparseCodec):
        raise SettingError(
            "rounds.codec", "leaves out entries, so that the merge cannot see which were trained (`mean`)"
        )
    if rounds.transfer.drafts_next_round:
        raise SettingError("rounds.transfer", "duplex transfers are for whole models")
    return extractor


def build_memory_model(model: RoundsModel) -> MemoryModel:
    """What turns of this model take in memory."""
    scale = stand_in_scale(model.job, model.chain)
    return MemoryModel(model.job.rounds, model.chain, model.layout, scale.bytes)


def _whole_fraction(chain: LayerChain, whole: LayerChain) -> float | None:
    """The trained model's MACs as a fraction of the whole one's; None where it is the whole one."""
    if chain is whole:
        return None
    return sum(layer.macs for layer in chain.layers) / sum(layer.macs for layer in whole.layers)


def _build_layout(chain: LayerChain, job: Job) -> WeightLayout:
    """The weights layer by layer, or finer where transfers may be cut inside a layer."""
    if job.rounds.submodel.slices_frozen:
        layout = WeightLayout.of_module(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    else:
        layout = WeightLayout.of_chain(chain)
    local = job.rounds.local
    if isinstance(local, LocalSteps) and local.state == "average":
        return add_moment_buffers(layout, local.traits.moments)
    finest = job.rounds.transfer.split_layer_fraction
    return layout if finest is None else layout.split_layers(finest)


def _layer_costs(job: Job, chain: LayerChain, layout: WeightLayout, whole: LayerChain) -> DeviceCosts:
    """What each layer costs on a device.

    Profiles are of the whole model: where a sub-model part trains another one, they set a device's speed only.
    """
    forward = [0.0] * layout.layer_count
    for layer, units in zip(chain.layers, layout.split_ranges(), strict=True):
        forward[units[-1]] = forward_flops(layer.macs)  # a layer starts when all of it is there, and ends all at once
    pull, push = pull_bytes(layout, job.rounds.pull_codec), push_bytes(layout, job.rounds.codec)
    works = measured_work(job, layout.split_ranges()) if chain is whole else {}
    measured = {name: DeviceCosts(*work, pull, push) for name, work in works.items()}
    learns = [bound > 0 for bound in layout.param_bounds[1:]]  # no gradients flow into frozen first layers
    backward = [BACKWARD_PER_FORWARD * flop * trained for flop, trained in zip(forward, learns, strict=True)]
    costs = DeviceCosts(forward, backward, pull, push, measured=measured)
    return stand_in_scale(job, chain).scale_costs(costs)


def split_into_shards(model: RoundsModel, data: Dataset, context: SubmodelContext) -> Shards:
    """The samples of each device, by the job's split and what its sub-model part asks of it."""
    job, names, train = model.job, context.device_names, data.train
    if len(names) > len(train):
        raise DataError(f"{len(names)} devices share {len(train)} samples of {data.name!r}; each needs at least one")
    if train.is_stream:
        if job.stream is None:
            raise SettingError(
                "stream", f"{data.name!r} is an iterable data set, so it streams in; add a [stream] table"
            )
        return {name: np.array([index], np.int64) for index, name in enumerate(names)}
    rules = job.rounds.submodel.sample_rules(context, model.chain)
    if rules.groups is None:
        split = job.split.for_devices(names)
    else:
        split = job.split.for_trained_groups(rules.groups, rules.groups_by_device)
    if split.needs_labels and not train.has_labels:
        kind = split.__struct_config__.tag
        raise SettingError(
            "split",
            f"{kind!r} goes by class labels, and {data.name!r} has none; give its samples a `label`, or split by"
            " 'iid', 'power-law', 'everything' or 'owner'",
        )
    labels = train.labels if split.needs_labels else np.zeros(len(train), dtype=np.int64)
    shards = split.assign_samples(labels, len(names), seeds.child_generator(job.seed, "split"), train.owner)
    return {name: shard[~np.isin(shard, rules.held_out)] for name, shard in zip(names, shards, strict=True)}


def build_skew_correction(
    job: Job, data: Dataset, shards: Shards, extractor: SubmodelExtractor | None
) -> DeviceSkewCorrection | None:
    """The job's correction of skewed classes with each device's class frequencies; None where it has none."""
    skew, classes = job.rounds.skew, len(data.classes)
    if isinstance(skew, NoSkewCorrection):
        return None
    if not classes or not data.train.has_labels:
        raise SettingError("rounds.skew", f"needs classes, and {data.name!r} has none; leave it out")
    if any(job.rounds.submodel.class_balance(extractor, device) is not None for device in shards):
        raise SettingError("rounds.skew", "class groups weigh their own classes already; leave it out")
    if job.stream is not None:
        return DeviceSkewCorrection(skew, None)
    labels = data.train.labels
    return DeviceSkewCorrection(
        skew, {device: class_frequencies(labels[shard], classes) for device, shard in shards.items()}
    )
