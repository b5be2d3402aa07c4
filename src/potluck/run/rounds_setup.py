"""What a job stands for: the model as a chain, who holds which samples, and the mathematics of both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from potluck import seeds
from potluck.data import Dataset
from potluck.data.streams.stream_feed import StreamFeed
from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.backends import DeviceBackend, ServerBackend, TimingOnlyServer, TimingOnlyTrainer, TurnIdentity
from potluck.loops.batch_source import BatchSource, StreamBatchSource
from potluck.loops.device_costs import DeviceCosts
from potluck.loops.device_estimates import DeviceEstimates, LinkPrior
from potluck.loops.node import Node
from potluck.loops.parts.stream_batching import StreamThroughput, max_turn_samples, turn_samples
from potluck.loops.rounds import RoundsCoordinator
from potluck.loops.rounds_device import RoundsDevice
from potluck.loops.run_policy import RunPolicy
from potluck.loops.run_progress import RunProgress
from potluck.loops.sample_sharing import SampleSharing
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.shape_only import ShapeOnlyMode
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.torch_server import TorchServer
from potluck.run.class_group_cut import resolve_class_groups
from potluck.run.class_group_setup import build_held_source, calibration_indices, resolve_split
from potluck.run.device_state import DeviceStates
from potluck.run.initial_weights import build_initial_module
from potluck.run.measured_costs import check_profiles, measured_work
from potluck.run.replay_streams import replay_feed_factory
from potluck.run.skew_remedy import build_skew_remedy
from potluck.run.stand_in import stand_in_scale, stand_in_server_class, stand_in_trainer_class
from potluck.run.submodel_sizing import SubmodelSizing, build_extractor, build_trained_chain, small_model_fraction
from potluck.task import Task, TaskSettings, build_task

__all__ = ["RoundsSetup"]

_OWN = 1_000_000  # samples that a device may have of its own, beside what the coordinator knows of

Shards = Mapping[str, npt.NDArray[np.int64]]


@dataclass
class RoundsSetup:
    """All that is worked out before the run begins; `job` leaves nothing open."""

    job: Job
    layout: WeightLayout
    costs: DeviceCosts
    shards: Shards
    server: ServerBackend
    trainer: DeviceBackend
    module: nn.Module | None
    feeds: Callable[[str], StreamFeed] | None = None  # where data streams in
    data: Dataset | None = None
    extractor: SubmodelExtractor | None = None
    small_fraction: float | None = None  # the share of the whole model's MACs, where everyone trains a smaller one

    def __post_init__(self) -> None:
        self._devices = {device.name: device for device in self.job.fleet.members}
        self._expected_turn_s: dict[str, float] = {}
        self.sizing = SubmodelSizing(self.job, self.costs, self.extractor, self.small_fraction)

    @staticmethod
    def from_job(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> RoundsSetup:
        """`elsewhere`: the network's numbers come from a checkpoint or from the coordinator, not from `start`."""
        return (
            _build_timing_setup(job, task)
            if job.timing_only
            else _build_training_setup(job, task or build_task(job.task, data), elsewhere)
        )

    @property
    def max_message_bytes(self) -> int:
        """The most that one message of this job can take."""
        return 2 * self.layout.nbytes + (1 << 20)

    @property
    def model_digest(self) -> str:
        """Tells the model that is built here from others."""
        return self.layout.digest()

    # --- the two sides ---------------------------------------------------------------------------------------------

    def build_coordinator(self, node: Node, rules: RunPolicy, books: RunProgress) -> RoundsCoordinator:
        """The coordinator's loop."""
        rounds, layers = self.job.rounds, self.costs.layer_count
        return RoundsCoordinator(
            node,
            rounds,
            self.server,
            layers,
            self.expected_turn_s,
            self.max_turn_samples,
            rules,
            books,
            self._build_sharing(),
        )

    def build_device_loop(self, node: Node, belongings: DeviceStates) -> RoundsDevice:
        """A device's loop, for one life."""
        name, life = node.name, node.incarnation
        seen = belongings.estimates_for(name, life, self.link_prior(name))
        memory = belongings.codec_memory_for(name, life, self.trainer.create_error_feedback)
        supply = self._build_batch_source(node, belongings, self.whole_model_costs(name), seen)
        affordable, share = self.sizing.affordable_fraction(name), self.sizing.macs_fraction
        return RoundsDevice(
            node, self.job.rounds, self.trainer, self.turn_costs, supply, seen, memory, affordable, share
        )

    def _build_batch_source(
        self, node: Node, belongings: DeviceStates, costs: DeviceCosts, seen: DeviceEstimates
    ) -> BatchSource:
        rounds, feeds = self.job.rounds, self.feeds
        if feeds is None:
            return build_held_source(node, rounds, self.shards[node.name], self.data, self.extractor)
        feed = belongings.feed_for(node.name, node.incarnation, lambda: feeds(node.name), node.now())
        shape, classes = (self.data.shape, len(self.data.classes)) if self.data is not None else ((), 0)
        return StreamBatchSource(node, rounds, feed, 1 / costs.step_s(1), shape, classes, seen)

    def _build_sharing(self) -> SampleSharing | None:
        stream = self.job.stream
        if stream is None or stream.injection is None or self.data is None:
            return None
        return SampleSharing(stream.injection, self.data.sample_bytes, self.job.seed)

    # --- figures ---------------------------------------------------------------------------------------------------

    def whole_model_costs(self, device: str) -> DeviceCosts:
        """Of the whole model, on a device."""
        return self.costs.on_device(device).with_speed(self._devices[device].flops)

    def turn_costs(self, whom: TurnIdentity) -> DeviceCosts:
        """Of what a device is sent for a turn."""
        return self.sizing.turn_costs(whom)

    def link_prior(self, device: str) -> LinkPrior:
        """What a device takes for granted of its link to the coordinator: the fleet's own figures."""
        own, centre = self._devices[device].link, self.job.fleet.coordinator.resolved_link
        return LinkPrior(
            up=min(own.up, centre.down),
            down=min(own.down, centre.up),
            overhead=own.overhead + centre.overhead,
            round_trip=2 * (own.latency + centre.latency),
        )

    def expected_turn_s(self, device: str) -> float:
        """About how many seconds a device takes for its part of a round, by its nominal figures."""
        if device not in self._expected_turn_s:
            self._expected_turn_s[device] = self._estimate_turn_s(device)
        return self._expected_turn_s[device]

    def _estimate_turn_s(self, device: str) -> float:
        found, rounds = self._devices[device], self.job.rounds
        if self.feeds is None:
            held = len(self.shards[device])
            samples = sum(
                rounds.batching.turn_batch_sizes(
                    held, rounds.local.batches_per_turn(rounds.batching.batches_per_epoch(held))
                )
            )
        else:
            samples = turn_samples(rounds.batching, StreamThroughput(self.feeds(device).rate_at(0.0)))
        bytes_s = sum(self.costs.pull_bytes) / found.link.down + sum(self.costs.push_bytes) / found.link.up
        return float(self.costs.with_speed(found.flops).step_s(samples) + bytes_s + 4 * found.link.latency)

    def max_turn_samples(self, device: str) -> int:
        """How many samples a device can train on in a turn, beside what others give it: no update counts for more."""
        batching = self.job.rounds.batching
        if self.feeds is not None:
            return max_turn_samples(batching)
        held = max(2 * len(self.shards[device]), _OWN)  # some make up one more for each that they have
        passes = self.job.rounds.local.batches_per_turn(batching.batches_per_epoch(held)) or 1
        return passes * (batching.batch_size_for(held) + 1)  # one that is left over joins the mini-batch before

    def trained_module(self) -> nn.Module | None:
        """The trained model."""
        if self.module is not None and isinstance(self.server, TorchServer):
            _load_state(self.module, self.server.final_state(), self.layout)
        return self.module


def _build_training_setup(job: Job, task: Task, elsewhere: bool) -> RoundsSetup:
    module = build_initial_module(job, task, elsewhere)
    whole = trace_layers(module, task.data.shape)
    check_profiles(job, whole)
    job = resolve_class_groups(job, whole, task.data.train)
    chain = build_trained_chain(job, whole, task.data.train)
    module, layout, rounds = chain.module, _build_layout(chain, job), job.rounds
    shards, costs, data = _split_into_shards(job, task, chain), _layer_costs(chain, layout, job, whole), task.data
    carver = build_extractor(
        job, chain, layout, SubmodelSizing(job, costs, None).affordable_fraction, data.train, shards
    )
    weight, codec = stand_in_scale(job, chain), rounds.codec
    remedy = build_skew_remedy(job, data, shards, carver)
    trainer = stand_in_trainer_class(weight)(module, layout, task.loss, data.train, rounds.local, codec, carver, remedy)
    server = stand_in_server_class(weight)(
        module, layout, task.loss, data.test, rounds.merge, rounds.server, rounds.codec, carver
    )
    feeds, small = replay_feed_factory(job, shards, data.train), small_model_fraction(job, chain, whole)
    return RoundsSetup(job, layout, costs, shards, server, trainer, module, feeds, data, carver, small)


def _build_timing_setup(job: Job, task: Task | None) -> RoundsSetup:
    """The model is built of hollow tensors and the data is not read at all."""
    if task is not None:
        whole = trace_layers(task.build_module(job.seed), task.data.shape)
    elif isinstance(job.task, TaskSettings):
        info = job.task.data.info(None)
        with ShapeOnlyMode():
            module = job.task.model_factory(info.shape, len(info.classes))()
        whole = trace_layers(module, info.shape)
    else:
        raise SettingError("timing_only", "needs a [task] table or a task given in Python")
    check_profiles(job, whole)
    job = resolve_class_groups(job, whole, None)
    chain = build_trained_chain(job, whole)
    layout = _build_layout(chain, job)
    costs = _layer_costs(chain, layout, job, whole)
    carver = build_extractor(job, chain, layout, SubmodelSizing(job, costs, None).affordable_fraction, None)
    shards, sizing = _EqualShards(np.arange(job.samples)), SubmodelSizing(job, costs, carver)
    server, trainer = TimingOnlyServer(sizing.turn_costs), TimingOnlyTrainer(sizing.turn_costs, carver)
    feeds, small = replay_feed_factory(job, shards, None), small_model_fraction(job, chain, whole)
    return RoundsSetup(job, layout, costs, shards, server, trainer, None, feeds, None, carver, small)


class _EqualShards(dict[str, npt.NDArray[np.int64]]):
    """Every device holds the same number of samples."""

    def __init__(self, held: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self._shard = held

    def __missing__(self, device: str) -> npt.NDArray[np.int64]:
        return self._shard


def _build_layout(chain: LayerChain, job: Job) -> WeightLayout:
    """The model's numbers layer by layer, or finer, where transfers may be cut inside a layer."""
    layout = WeightLayout.of_module(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    finest = job.rounds.transfer.split_layer_fraction
    return layout if finest is None else layout.split_layers(finest)


def _layer_costs(chain: LayerChain, layout: WeightLayout, job: Job, whole: LayerChain) -> DeviceCosts:
    """Two operations per MAC forward, twice that backward; bytes after the codec. Profiles are of the whole model:
    if the job trains another one (class groups, small), a device's profile sets its rate only."""
    forward = [0.0] * layout.layer_count
    for found, units in zip(chain.layers, layout.split_ranges(), strict=True):
        forward[units[-1]] = 2.0 * found.macs  # a layer begins when all of it is there, and gives all of it at once
    pull = [layout.segment_bytes(layer, layer) for layer in range(layout.layer_count)]
    push = []
    for layer in range(layout.layer_count):
        params, buffers = layout.layer_slices(layer, layer)
        kept = (buffers.stop - buffers.start) * layout.itemsize
        push.append(job.rounds.codec.encoded_bytes(params.stop - params.start, layout.itemsize) + kept)
    works = measured_work(job, layout.split_ranges()) if chain is whole else {}
    measured = {name: DeviceCosts(*work, pull, push) for name, work in works.items()}
    costs = DeviceCosts(forward, [2 * flop for flop in forward], pull, push, measured=measured)
    return stand_in_scale(job, chain).scale_costs(costs)


def _split_into_shards(job: Job, task: Task, chain: LayerChain) -> Shards:
    names = [device.name for device in job.fleet.members]
    train = task.data.train
    if len(names) > len(train):
        raise DataError(
            f"{len(names)} devices share {len(train)} samples of {task.data.name!r}; each needs at least one"
        )
    labels = train.labels if train.y.dtype == torch.int64 else np.zeros(len(train), dtype=np.int64)
    dealt = resolve_split(job, chain).assign_samples(
        labels, len(names), seeds.child_generator(job.seed, "split"), train.owner
    )
    withheld = calibration_indices(job, len(train))
    return {name: shard[~np.isin(shard, withheld)] for name, shard in zip(names, dealt, strict=True)}


def _load_state(module: nn.Module, state: ModelState, layout: WeightLayout) -> None:
    named: dict[str, Any] = state.named_tensors(layout)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in named.items():
            tensors[name].copy_(value if tensors[name].is_floating_point() else value.round())
