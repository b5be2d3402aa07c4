"""A job of rounds, prepared: the model as a chain of layers, each device's samples, and both sides of the loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn

from potluck import seeds
from potluck.data import Dataset
from potluck.errors import DataError, SettingError
from potluck.fleet import Device
from potluck.job import Job
from potluck.loops.backends import DeviceBackend, ServerBackend, TimingOnlyServer, TimingOnlyTrainer, TurnIdentity
from potluck.loops.balanced_batch_source import build_balanced_source
from potluck.loops.batch_source import BatchSource, ShardBatchSource, StreamBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.leader import RunPolicy
from potluck.loops.node import Node
from potluck.loops.rounds import RoundsCoordinator
from potluck.loops.rounds_context import RoundsContext, SampleSharing
from potluck.loops.rounds_device import RoundsDevice, RoundsDeviceContext
from potluck.loops.run_progress import RunProgress
from potluck.loops.turn_sizing import DeviceSamples, FeedFactory, Shards, TurnSizing, push_bytes
from potluck.model.class_skew import DeviceSkewCorrection, NoSkewCorrection, class_frequencies
from potluck.model.codecs import SparseCodec
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.submodel_context import LabelledSamples, SubmodelContext, TrainedModel
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.torch_server import TorchServer
from potluck.run.device_state import DeviceStates
from potluck.run.device_streams import replay_feed_factory, run_live_feed
from potluck.run.initial_weights import build_initial_module, trace_shape_only_chain
from potluck.run.job_plan import JobPlan, forecast_rounds
from potluck.run.measured_costs import check_profiles, measured_work
from potluck.run.stand_in import stand_in_scale, stand_in_server_class, stand_in_trainer_class
from potluck.task import Task, TaskSettings, build_task

__all__ = ["RoundsSetup"]


@dataclass
class RoundsSetup:
    """What a job of rounds is prepared into; no setting of `job` is left at `auto`."""

    job: Job
    layout: WeightLayout
    costs: DeviceCosts
    shards: Shards
    server: ServerBackend
    trainer: DeviceBackend
    module: nn.Module | None = None  # None where only time is modelled
    feeds: FeedFactory | None = None  # where data streams in
    data: Dataset | None = None
    extractor: SubmodelExtractor | None = None
    model_fraction: float | None = None  # of the whole model's MACs, where all devices train a smaller model

    @staticmethod
    def from_job(job: Job, task: Task | None, data: Path | None, load_weights: bool = True) -> RoundsSetup:
        """Without `load_weights` the weights come from a checkpoint or from the coordinator, not from `start`."""
        if job.timing_only:
            return _build_timing_setup(job, task)
        return _build_training_setup(job, task or build_task(job.task, data), load_weights)

    @cached_property
    def sizing(self) -> TurnSizing:
        return TurnSizing(
            self.job.rounds,
            self.job.fleet.members,
            self.costs,
            self.extractor,
            self.model_fraction,
            DeviceSamples(self.shards, self.feeds),
        )

    @cached_property
    def _devices(self) -> dict[str, Device]:
        return {device.name: device for device in self.job.fleet.members}

    @property
    def max_message_bytes(self) -> int:
        """The most that one message of this job can take."""
        return 2 * self.layout.nbytes + (1 << 20)

    @property
    def model_digest(self) -> str:
        """Identifies the model by the names and shapes of its layers."""
        return self.layout.digest()

    # --- the two sides ---------------------------------------------------------------------------------------------

    def build_coordinator(self, node: Node, policy: RunPolicy, progress: RunProgress) -> RoundsCoordinator:
        """The coordinator's loop."""
        context = RoundsContext(
            self.job.rounds,
            self.server,
            self.costs.layer_count,
            self.sizing.expected_turn_s,
            self.sizing.max_turn_samples,
            policy,
            progress,
            self._build_sharing(),
        )
        return RoundsCoordinator(node, context)

    def build_device_loop(self, node: Node, states: DeviceStates) -> RoundsDevice:
        """A device's loop, for one incarnation."""
        name, incarnation = node.name, node.incarnation
        estimates = states.estimates_for(name, incarnation, self.link_prior(name))
        context = RoundsDeviceContext(
            self.job.rounds,
            self.trainer,
            self.sizing.turn_costs,
            self._build_batch_source(node, states, estimates),
            estimates,
            states.codec_memory_for(name, incarnation, self.trainer.create_error_feedback),
            self.sizing.affordable_fraction(name),
            self.sizing.macs_fraction,
        )
        return RoundsDevice(node, context)

    @contextlib.asynccontextmanager
    async def live_inputs(self, node: Node) -> AsyncIterator[None]:
        """Within this context a live device's data comes from the job's source, if it has one."""
        if self.job.stream is None or self.data is None:
            yield
            return
        replayed = self.feeds
        async with run_live_feed(self.job, self.data, self.shards, node) as feed:
            self.feeds = lambda device: feed
            try:
                yield
            finally:
                self.feeds = replayed

    def _build_batch_source(self, node: Node, states: DeviceStates, estimates: DeviceEstimates) -> BatchSource:
        rounds, feeds, name = self.job.rounds, self.feeds, node.name
        if feeds is None:
            balance = rounds.submodel.class_balance(self.extractor, name) if self.data is not None else None
            if self.data is None or balance is None:
                return ShardBatchSource(node, rounds, self.shards[name])
            return build_balanced_source(node, rounds, self.shards[name], self.data, balance)
        feed = states.feed_for(name, node.incarnation, lambda: feeds(name), node.now())
        shape, classes = (self.data.shape, len(self.data.classes)) if self.data is not None else ((), 0)
        samples_per_s = 1 / self.whole_model_costs(name).step_s(1)
        return StreamBatchSource(node, rounds, feed, samples_per_s, shape, classes, estimates)

    def _build_sharing(self) -> SampleSharing | None:
        stream = self.job.stream
        if stream is None or stream.injection is None or self.data is None:
            return None
        return SampleSharing(stream.injection, self.data.sample_bytes, self.job.seed)

    # --- figures ---------------------------------------------------------------------------------------------------

    def whole_model_costs(self, device: str) -> DeviceCosts:
        """Of the whole model, on a device."""
        return self.sizing.whole_model_costs(device)

    def turn_costs(self, turn: TurnIdentity) -> DeviceCosts:
        """Of what a device is sent for a turn."""
        return self.sizing.turn_costs(turn)

    def link_prior(self, device: str) -> LinkPrior:
        """What a device assumes of its link to the coordinator before it has measured it: the fleet's figures."""
        own, central = self._devices[device].link, self.job.fleet.coordinator.resolved_link
        return LinkPrior(
            up=min(own.up, central.down),
            down=min(own.down, central.up),
            overhead=own.overhead + central.overhead,
            round_trip=2 * (own.latency + central.latency),
        )

    def forecast(self) -> JobPlan:
        """What a round takes on each kind of device."""
        plan = self.job.rounds.submodel.describe_plan(submodel_context(self.job, None), self.extractor)
        return JobPlan(self.job, rounds=forecast_rounds(self.job, self.turn_costs), submodel=plan)

    # --- the end ---------------------------------------------------------------------------------------------------

    def save_trained_model(self, folder: Path | None) -> tuple[nn.Module | None, Mapping[str, Any]]:
        """The trained model, saved to the folder if there is one, and what the summary says of it."""
        if self.module is None:
            return None, {}
        if isinstance(self.server, TorchServer):
            _load_state(self.module, self.server.final_state(), self.layout)
        return self.module, self.job.rounds.submodel.save_model(self.module, self.extractor, folder)


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
        loss=job.task.loss if isinstance(job.task, TaskSettings) else None,
        samples=samples,
    )


def _build_training_setup(job: Job, task: Task, load_weights: bool) -> RoundsSetup:
    data, context = task.data, submodel_context(job, task.data.train)
    whole = trace_layers(build_initial_module(job, task, load_weights), data.shape)
    job, chain, layout, costs = _build_trained_model(job, whole, context)
    shards, rounds = _split_into_shards(job, data, chain, context), job.rounds
    extractor = _build_extractor(job, context, chain, layout, costs, shards)
    scale = stand_in_scale(job, chain)
    remedy = _build_skew_correction(job, data, shards, extractor)
    trainer = stand_in_trainer_class(scale)(
        chain.module, layout, task.loss, data.train, rounds.local, rounds.codec, extractor, remedy
    )
    server = stand_in_server_class(scale)(
        chain.module, layout, task.loss, data.test, rounds.merge, rounds.server, rounds.codec, extractor
    )
    feeds, fraction = replay_feed_factory(job, shards, data.train), _model_fraction(chain, whole)
    return RoundsSetup(
        job, layout, costs, shards, server, trainer, chain.module, feeds, data, extractor, fraction
    )  # fmt: skip


def _build_timing_setup(job: Job, task: Task | None) -> RoundsSetup:
    context, whole = submodel_context(job, None), trace_shape_only_chain(job, task)
    job, chain, layout, costs = _build_trained_model(job, whole, context)
    extractor = _build_extractor(job, context, chain, layout, costs, None)
    shards, sizing = _EqualShards(job.samples), TurnSizing(job.rounds, job.fleet.members, costs, extractor)
    server, trainer = TimingOnlyServer(sizing.turn_costs), TimingOnlyTrainer(sizing.turn_costs, extractor)
    feeds, fraction = replay_feed_factory(job, shards, None), _model_fraction(chain, whole)
    return RoundsSetup(
        job, layout, costs, shards, server, trainer, feeds=feeds, extractor=extractor, model_fraction=fraction
    )


def _build_trained_model(
    job: Job, whole: LayerChain, context: SubmodelContext
) -> tuple[Job, LayerChain, WeightLayout, DeviceCosts]:
    """The job without `auto`, the model that it trains as its sub-model part adapts it, and what that costs."""
    check_profiles(job, whole)
    part = job.rounds.submodel.resolve(context, whole)
    if part != job.rounds.submodel:
        job = replace(job, rounds=replace(job.rounds, submodel=part))
    chain = part.adapt_model(context, whole)
    layout = _build_layout(chain, job)
    return job, chain, layout, _layer_costs(chain, layout, job, profiled=chain is whole)


def _build_extractor(
    job: Job,
    context: SubmodelContext,
    chain: LayerChain,
    layout: WeightLayout,
    costs: DeviceCosts,
    shards: Shards | None,
) -> SubmodelExtractor | None:
    part, rounds = job.rounds.submodel, job.rounds
    affordable = TurnSizing(rounds, job.fleet.members, costs).affordable_fraction
    extractor = part.build_extractor(context, TrainedModel(chain, layout, affordable, shards))
    if extractor is None:
        return None
    if rounds.codec.new_state() is not None and part.chooses_per_round:
        raise SettingError(
            "rounds.codec",
            "keeps what it leaves out for later, which does not fit sub-models that change every round; use another",
        )
    if part.averages_changed_only and isinstance(rounds.codec, SparseCodec):
        raise SettingError(
            "rounds.codec", "leaves out entries, so that the merge cannot see which were trained (`mean`)"
        )
    if rounds.transfer.drafts_next_round:
        raise SettingError("rounds.transfer", "duplex transfers are for whole models")
    return extractor


def _model_fraction(chain: LayerChain, whole: LayerChain) -> float | None:
    """The trained model's MACs as a fraction of the whole one's; None where it is the whole one."""
    if chain is whole:
        return None
    return sum(layer.macs for layer in chain.layers) / sum(layer.macs for layer in whole.layers)


class _EqualShards(dict[str, Any]):
    """Every device holds the same number of samples."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._shard = np.arange(count)

    def __missing__(self, device: str) -> Any:
        return self._shard


def _build_layout(chain: LayerChain, job: Job) -> WeightLayout:
    """The weights layer by layer, or finer where transfers may be cut inside a layer."""
    layout = WeightLayout.of_module(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    finest = job.rounds.transfer.split_layer_fraction
    return layout if finest is None else layout.split_layers(finest)


def _layer_costs(chain: LayerChain, layout: WeightLayout, job: Job, profiled: bool) -> DeviceCosts:
    """Two operations per MAC forward, twice that backward; bytes as the codec encodes them.

    Profiles describe the whole model; where the job trains another one (not `profiled`), they only set a device's rate.
    """
    forward = [0.0] * layout.layer_count
    for layer, units in zip(chain.layers, layout.split_ranges(), strict=True):
        forward[units[-1]] = 2.0 * layer.macs  # a layer starts when all of it is there, and ends all at once
    pull = [layout.segment_bytes(layer, layer) for layer in range(layout.layer_count)]
    push = push_bytes(layout, job.rounds.codec)
    works = measured_work(job, layout.split_ranges()) if profiled else {}
    measured = {name: DeviceCosts(work.forward, work.backward, pull, push, work.flops) for name, work in works.items()}
    costs = DeviceCosts(forward, [2 * flop for flop in forward], pull, push, measured=measured)
    return stand_in_scale(job, chain).scale_costs(costs)


def _split_into_shards(job: Job, data: Dataset, chain: LayerChain, context: SubmodelContext) -> Shards:
    names, train = context.device_names, data.train
    if len(names) > len(train):
        raise DataError(f"{len(names)} devices share {len(train)} samples of {data.name!r}; each needs at least one")
    rules = job.rounds.submodel.sample_rules(context, chain)
    if rules.groups is None:
        split = job.split.for_devices(names)
    else:
        split = job.split.for_trained_groups(rules.groups, rules.groups_by_device)
    labels = train.labels if train.y.dtype == torch.int64 else np.zeros(len(train), dtype=np.int64)
    shards = split.assign_samples(labels, len(names), seeds.child_generator(job.seed, "split"), train.owner)
    return {name: shard[~np.isin(shard, rules.held_out)] for name, shard in zip(names, shards, strict=True)}


def _build_skew_correction(
    job: Job, data: Dataset, shards: Shards, extractor: SubmodelExtractor | None
) -> DeviceSkewCorrection | None:
    """The job's correction of skewed classes with each device's class frequencies; None where it has none."""
    skew, classes = job.rounds.skew, len(data.classes)
    if isinstance(skew, NoSkewCorrection):
        return None
    if not classes or data.train.y.dtype != torch.int64:
        raise SettingError("rounds.skew", f"needs classes, and {data.name!r} has none; leave it out")
    if any(job.rounds.submodel.class_balance(extractor, device) is not None for device in shards):
        raise SettingError("rounds.skew", "class groups weigh their own classes already; leave it out")
    if job.stream is not None:
        return DeviceSkewCorrection(skew, None)
    labels = data.train.labels
    return DeviceSkewCorrection(
        skew, {device: class_frequencies(labels[shard], classes) for device, shard in shards.items()}
    )


def _load_state(module: nn.Module, state: ModelState, layout: WeightLayout) -> None:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in state.named_tensors(layout).items():
            tensors[name].copy_(value if tensors[name].is_floating_point() else value.round())
