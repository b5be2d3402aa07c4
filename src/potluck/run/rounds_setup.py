"""A job of rounds, prepared: the model as a chain of layers, each device's samples, and both sides of the loop."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from potluck.data import Dataset
from potluck.data.streams.sources import ReplaySource
from potluck.data.streams.stream_records import SampleSpec
from potluck.fleet import Device
from potluck.job import Job
from potluck.loops.backends import (
    DeltaSizes,
    DeviceBackend,
    ServerBackend,
    TimingOnlyServer,
    TimingOnlyTrainer,
    TurnIdentity,
)
from potluck.loops.balanced_batch_source import LimitedBatchSource, build_balanced_source
from potluck.loops.batch_source import BatchSource, ShardBatchSource, StreamBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.leader import RunPolicy
from potluck.loops.node import Node
from potluck.loops.rounds import RoundsCoordinator
from potluck.loops.rounds_context import RoundsContext, SampleSharing
from potluck.loops.rounds_device import RoundsDevice, RoundsDeviceContext
from potluck.loops.run_progress import RunProgress
from potluck.loops.turn_sizing import DeviceSamples, FeedFactory, Shards, TurnSizing
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.layer_chain import trace_layers
from potluck.model.meta_copy import input_dtype
from potluck.model.metrics import TaskMetrics
from potluck.model.model_replica import ModelTemplate
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.torch_server import TorchServer
from potluck.model.torch_trainer import TorchTrainer
from potluck.model.training_costs import push_bytes
from potluck.model.training_probe import probe_metrics, probe_single_sample
from potluck.run.device_memory import MemoryModel
from potluck.run.device_state import DeviceStates
from potluck.run.device_streams import held_classes, replay_feed_factory, run_live_feed
from potluck.run.frozen_fetching import build_frozen_fetcher, devices_build_frozen
from potluck.run.initial_weights import build_initial_module, input_spec, trace_shape_only_chain
from potluck.run.job_plan import JobPlan, RoundForecast, forecast_rounds
from potluck.run.local_training_checks import check_local_training, check_precision
from potluck.run.metric_settings import check_metric_settings
from potluck.run.pull_compression import build_delta_format, compresses_pulls
from potluck.run.rounds_model import (
    build_extractor,
    build_memory_model,
    build_rounds_model,
    build_skew_correction,
    split_into_shards,
    submodel_context,
)
from potluck.run.stand_in import stand_in_scale, stand_in_server_class, stand_in_trainer_class
from potluck.run.submodel_checks import check_submodels
from potluck.task import Task, build_task

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
    metrics: TaskMetrics = field(default_factory=TaskMetrics)
    model_fraction: float | None = None  # of the whole model's MACs, where all devices train a smaller model
    frozen: FrozenWeights = field(default_factory=lambda: FrozenWeights(()))
    builds_frozen: bool = True  # whether a device builds the same frozen weights from the job
    memory: MemoryModel | None = None  # what turns take in memory

    @staticmethod
    def from_job(job: Job, task: Task | None, data: Path | None, load_weights: bool = True) -> RoundsSetup:
        """Without `load_weights` the weights come from a checkpoint or from the coordinator, not from `start`."""
        if job.timing_only:
            setup = _build_timing_setup(job, task)
        else:
            setup = _build_training_setup(job, task or build_task(job.task, data), load_weights)
        check_submodels(setup.extractor, setup.trainer, [device.name for device in job.fleet.members], setup.turn_costs)
        assert setup.memory is not None
        setup.memory.check_devices(setup.job, setup.sizing.largest_batch, setup.extractor)
        return setup

    @cached_property
    def sizing(self) -> TurnSizing:
        return TurnSizing(
            self.job.rounds,
            self.job.fleet.members,
            self.costs,
            self.extractor,
            self.model_fraction,
            DeviceSamples(self.shards, self.feeds, self._replays_streams),
        )

    @property
    def _replays_streams(self) -> bool:
        return self.job.stream is None or isinstance(self.job.stream.source, ReplaySource)

    @cached_property
    def _devices(self) -> dict[str, Device]:
        return {device.name: device for device in self.job.fleet.members}

    @property
    def max_message_bytes(self) -> int:
        """The most that one message of this job can take."""
        return max(2 * self.layout.nbytes, self.frozen.message_bytes) + (1 << 20)

    @property
    def model_digest(self) -> str:
        """Identifies the model by the names and shapes of its layers."""
        return self.layout.digest() + self.frozen.structure_digest()

    # --- the two sides ---------------------------------------------------------------------------------------------

    def build_coordinator(self, node: Node, policy: RunPolicy, progress: RunProgress) -> RoundsCoordinator:
        """The coordinator's loop."""
        context = RoundsContext(
            self.job.rounds,
            self.server,
            self.costs.layer_count,
            self.sizing.expected_turn_s,
            self.sizing.sample_limit,
            policy,
            progress,
            self._build_sharing(),
            self.frozen if self.frozen.nbytes else None,
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
            states.carried_state_for(name, incarnation, self.trainer.create_carried_state),
            self.sizing.affordable_fraction(name),
            self.sizing.macs_fraction,
            build_frozen_fetcher(self, node, states, self.job.rounds.retry),
            states.held_model_for(name, incarnation) if compresses_pulls(self.job.rounds) else None,
        )
        return RoundsDevice(node, context)

    def held_samples(self, name: str) -> int | None:
        """How many samples a device of this name holds on this machine; None where they stream in."""
        return None if self.feeds is not None else len(self.shards[name])

    def check_device(self, name: str) -> None:
        """Refuse what this machine, which trains as the device of this name, cannot do."""
        if isinstance(self.trainer, TorchTrainer):
            check_precision(self.job.rounds.local.precision, name)
            self.trainer.check_precision()

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
            balance = rounds.submodel.class_balance(self.extractor, name)
            if balance is None:
                return ShardBatchSource(node, rounds, self.shards[name])
            if self.data is None:
                return LimitedBatchSource(node, rounds, self.shards[name], balance)
            return build_balanced_source(node, rounds, self.shards[name], self.data, balance)
        feed = states.feed_for(name, node.incarnation, lambda: feeds(name), node.now())
        spec = None if self.data is None else SampleSpec.from_dataset(self.data)
        samples_per_s = 1 / self.whole_model_costs(name).step_s(1)
        return StreamBatchSource(node, rounds, feed, samples_per_s, spec, estimates)

    def _build_sharing(self) -> SampleSharing | None:
        stream = self.job.stream
        if stream is None or stream.injection is None or self.data is None:
            return None
        classes, spec = held_classes(self.job, self.data, self.shards), SampleSpec.from_dataset(self.data)
        sample_bytes = sum(array.nbytes for array in spec.arrays)
        return SampleSharing(stream.injection, sample_bytes, self.job.seed, classes, len(self.data.classes))

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
        forecasts = [self._with_memory(forecast) for forecast in forecast_rounds(self.job, self.turn_costs)]
        return JobPlan(self.job, rounds=forecasts, submodel=plan)

    def _with_memory(self, forecast: RoundForecast) -> RoundForecast:
        assert self.memory is not None
        name = forecast.devices[0]
        turn = self.memory.turn(name, self.sizing.largest_batch(name), self.extractor)
        return forecast._replace(memory_bytes=turn.needed_bytes)

    # --- the end ---------------------------------------------------------------------------------------------------

    def save_trained_model(self, folder: Path | None) -> tuple[nn.Module | None, Mapping[str, Any]]:
        """The trained model, saved to the folder if there is one, and what the summary says of it."""
        if self.module is None:
            return None, {}
        if isinstance(self.server, TorchServer):
            _load_state(self.module, self.server.final_state(), self.layout)
        return self.module, self.job.rounds.submodel.save_model(self.module, self.extractor, folder)

    def keep_best(self) -> None:
        if isinstance(self.server, TorchServer):
            self.server.keep_best()

    def build_best_module(self) -> nn.Module:
        """A copy of the model with the weights of the version that was kept."""
        assert isinstance(self.server, TorchServer)
        module = copy.deepcopy(self.module)
        assert module is not None
        _load_state(module, self.server.final_state(best=True), self.layout)
        return module


def _build_training_setup(job: Job, task: Task, load_weights: bool) -> RoundsSetup:
    metrics = check_metric_settings(job, task)
    module = build_initial_module(job, task, load_weights)
    data = task.data.with_dtype(input_dtype(module))
    context = submodel_context(job, data.train)
    whole = trace_layers(module, input_spec(data))
    model = build_rounds_model(job, whole, context)
    job, chain, layout, costs, fraction = model
    shards, rounds = split_into_shards(model, data, context), job.rounds
    extractor, scale = build_extractor(model, context, shards), stand_in_scale(job, chain)
    check_local_training(rounds, layout, extractor)
    probe_metrics(chain.module, task.loss, metrics, data.test)
    frozen, builds_frozen = FrozenWeights.of_chain(chain, layout), devices_build_frozen(job, task)
    skew = build_skew_correction(job, data, shards, extractor)
    template = ModelTemplate(chain.module, layout, task.loss, frozen, metrics)
    trainer = stand_in_trainer_class(scale)(template, data.train, rounds.local, rounds.codec, extractor, skew)
    if job.stream is None and min(rounds.batching.batch_size_for(len(shard)) for shard in shards.values()) == 1:
        probe_single_sample(chain.module, task.loss, data.train, "rounds.batching")
    server = stand_in_server_class(scale)(template, data.test, rounds.merge, rounds.server, rounds.codec, extractor)
    if rounds.average_decay:
        server.average_versions(rounds.average_decay)
    deltas = build_delta_format(rounds, layout, extractor)
    if deltas is not None:
        server.compress_pulls(deltas)
        trainer.deltas = deltas
    feeds = replay_feed_factory(job, shards, data.train)
    setup = RoundsSetup(
        job, layout, costs, shards, server, trainer, chain.module, feeds, data, extractor, metrics, fraction
    )
    return replace(setup, frozen=frozen, builds_frozen=builds_frozen, memory=build_memory_model(model))


def _build_timing_setup(job: Job, task: Task | None) -> RoundsSetup:
    context = submodel_context(job, None)
    model = build_rounds_model(job, trace_shape_only_chain(job, task), context)
    job, chain, layout, costs, fraction = model
    extractor, shards = build_extractor(model, context, None), _EqualShards(job.samples)
    check_local_training(job.rounds, layout, extractor)
    sizing = TurnSizing(job.rounds, job.fleet.members, costs, extractor)
    deltas, scale = build_delta_format(job.rounds, layout, extractor), stand_in_scale(job, chain)
    sizes = None if deltas is None else DeltaSizes(deltas, scale.bytes)

    def slice_bytes(part: WeightLayout) -> Sequence[int]:
        return [scale.scale_bytes(nbytes) for nbytes in push_bytes(part, job.rounds.codec)]

    server = TimingOnlyServer(sizing.turn_costs, sizes)
    trainer = TimingOnlyTrainer(sizing.turn_costs, extractor, slice_bytes)
    feeds = replay_feed_factory(job, shards, None)
    setup = RoundsSetup(
        job, layout, costs, shards, server, trainer, feeds=feeds, extractor=extractor, model_fraction=fraction
    )
    frozen, builds_frozen = FrozenWeights.of_chain(chain, layout), devices_build_frozen(job, task)
    return replace(setup, frozen=frozen, builds_frozen=builds_frozen, memory=build_memory_model(model))


class _EqualShards(dict[str, Any]):
    """Every device holds the same number of samples."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._shard = np.arange(count)

    def __missing__(self, device: str) -> Any:
        return self._shard


def _load_state(module: nn.Module, state: ModelState, layout: WeightLayout) -> None:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in state.named_tensors(layout).items():
            if name in tensors:  # not the optimizer state that is averaged
                tensors[name].copy_(value if tensors[name].is_floating_point() else value.round())
