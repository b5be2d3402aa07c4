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
from torch import nn

from potluck.data import Dataset
from potluck.fleet import Device
from potluck.job import Job
from potluck.loops.backends import DeviceBackend, ServerBackend, TimingOnlyServer, TimingOnlyTrainer, TurnIdentity
from potluck.loops.balanced_batch_source import build_balanced_source
from potluck.loops.batch_source import BatchSource, SampleFormat, ShardBatchSource, StreamBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.leader import RunPolicy
from potluck.loops.node import Node
from potluck.loops.rounds import RoundsCoordinator
from potluck.loops.rounds_context import RoundsContext, SampleSharing
from potluck.loops.rounds_device import RoundsDevice, RoundsDeviceContext
from potluck.loops.run_progress import RunProgress
from potluck.loops.turn_sizing import DeviceSamples, FeedFactory, Shards, TurnSizing
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import ModelTemplate
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.torch_server import TorchServer
from potluck.run.device_state import DeviceStates
from potluck.run.device_streams import replay_feed_factory, run_live_feed
from potluck.run.initial_weights import build_initial_module, trace_shape_only_chain
from potluck.run.job_plan import JobPlan, forecast_rounds
from potluck.run.rounds_model import (
    build_extractor,
    build_rounds_model,
    build_skew_correction,
    split_into_shards,
    submodel_context,
)
from potluck.run.stand_in import stand_in_scale, stand_in_server_class, stand_in_trainer_class
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
        sample_format = SampleFormat() if self.data is None else SampleFormat(self.data.shape, len(self.data.classes))
        samples_per_s = 1 / self.whole_model_costs(name).step_s(1)
        return StreamBatchSource(node, rounds, feed, samples_per_s, sample_format, estimates)

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


def _build_training_setup(job: Job, task: Task, load_weights: bool) -> RoundsSetup:
    data, context = task.data, submodel_context(job, task.data.train)
    whole = trace_layers(build_initial_module(job, task, load_weights), data.shape)
    model = build_rounds_model(job, whole, context)
    job, chain, layout, costs, fraction = model
    shards, rounds = split_into_shards(model, data, context), job.rounds
    extractor, scale = build_extractor(model, context, shards), stand_in_scale(job, chain)
    skew = build_skew_correction(job, data, shards, extractor)
    template = ModelTemplate(chain.module, layout, task.loss)
    trainer = stand_in_trainer_class(scale)(template, data.train, rounds.local, rounds.codec, extractor, skew)
    server = stand_in_server_class(scale)(template, data.test, rounds.merge, rounds.server, rounds.codec, extractor)
    feeds = replay_feed_factory(job, shards, data.train)
    return RoundsSetup(job, layout, costs, shards, server, trainer, chain.module, feeds, data, extractor, fraction)


def _build_timing_setup(job: Job, task: Task | None) -> RoundsSetup:
    context = submodel_context(job, None)
    model = build_rounds_model(job, trace_shape_only_chain(job, task), context)
    job, _, layout, costs, fraction = model
    extractor, shards = build_extractor(model, context, None), _EqualShards(job.samples)
    sizing = TurnSizing(job.rounds, job.fleet.members, costs, extractor)
    server, trainer = TimingOnlyServer(sizing.turn_costs), TimingOnlyTrainer(sizing.turn_costs, extractor)
    feeds = replay_feed_factory(job, shards, None)
    return RoundsSetup(
        job, layout, costs, shards, server, trainer, feeds=feeds, extractor=extractor, model_fraction=fraction
    )


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
            tensors[name].copy_(value if tensors[name].is_floating_point() else value.round())
