"""What a job with a pipeline stands for: the chain and its costs, the mathematics, and both sides of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.node import Node
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_coordinator import PipelineCoordinator
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.pipeline_device import PipelineDevice
from potluck.loops.pipeline.pipeline_leader import PipelineContext
from potluck.loops.pipeline.pipeline_planner import PipelinePlanner
from potluck.loops.pipeline.pipeline_stage import StageContext
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.stage_backend import StageBackend, TimingOnlyStages
from potluck.loops.pipeline.version_store import VersionStore
from potluck.loops.run_policy import RunPolicy
from potluck.loops.run_progress import RunProgress
from potluck.model.indexed_dataset import IndexedDataset
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.micro_batches import MicroBatches
from potluck.model.model_profile import BACKWARD_PER_FORWARD
from potluck.model.model_state import WeightLayout
from potluck.model.stage_function import StageFunctions
from potluck.model.torch_stages import TorchStages
from potluck.run.initial_weights import build_initial_module
from potluck.run.measured_costs import check_profiles, measured_work
from potluck.task import Task, TaskSettings, build_task

__all__ = ["PipelineSetup"]

_LEAST_BLOCKS = 4
_FARTHEST = 10_000  # batches, after which a stretch ends in any case


class CommittedModel:
    """The model as it stood when the run could last be taken up, in place of the rounds loop's server."""

    def __init__(self, mathematics: StageBackend) -> None:
        self.backend = mathematics
        self.weights = mathematics.initial_weights()

    def tensors(self) -> dict[str, Tensor]:
        return self.backend.tensors(self.weights)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.weights = self.backend.restore(tensors)


class PipelineRunRules:
    """The run's rules as the pipeline loop asks for them."""

    def __init__(self, rules: RunPolicy, job: Job, centre: CommittedModel, test: IndexedDataset | None) -> None:
        self._rules = rules
        self._job = job
        self._model = centre
        self._test = test
        self.stop_outcome = rules.stop_outcome
        self.interrupt_outcome = rules.interrupt_outcome
        self.evaluation_due = rules.evaluation_due
        self.checkpoint_due = rules.checkpoint_due
        self.save_checkpoint = rules.save_checkpoint
        self.report_progress = rules.report_progress

    def next_drain_batch(self, batch: int) -> int:
        for stop in range(batch + 1, batch + _FARTHEST):
            if self.evaluation_due(stop) or self.checkpoint_due(stop) or stop == self._job.stop.rounds:
                return stop
        return batch + _FARTHEST

    def evaluate_model(self, numbers: Any) -> dict[str, float]:
        mathematics = self._model.backend
        if not isinstance(mathematics, TorchStages) or self._test is None:
            return {}
        return mathematics.evaluate_model(numbers, self._test)

    def save_model(self, numbers: Any, books: RunProgress, now: float) -> None:
        self._model.weights = numbers
        self.save_checkpoint(books, now)


class PipelineSetup:
    """All that is worked out before a pipeline begins; it stands where `Setup` stands for rounds."""

    def __init__(
        self, job: Job, costs: PipelineCosts, mathematics: StageBackend, feed: MicroBatches, test: IndexedDataset | None
    ):
        self.job = job
        self.costs = costs
        self.server = CommittedModel(mathematics)
        self._feed = feed
        self._test = test
        self._devices = {device.name: device for device in job.fleet.members}
        _check_device_names(self.settings, self._devices.keys())

    @staticmethod
    def from_job(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> PipelineSetup:
        found = (
            _build_timing_setup(job, task)
            if job.timing_only
            else _build_training_setup(job, task or build_task(job.task, data), elsewhere)
        )
        found.build_planner().check_memory(found.candidate_devices())
        return found

    @property
    def settings(self) -> Pipeline:
        assert self.job.pipeline is not None
        return self.job.pipeline

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._feed.size

    @property
    def max_message_bytes(self) -> int:
        """The most that one message of this job can take: all layers with what their optimizer remembers, or a batch
        between two layers."""
        weights = sum(self.costs.param_bytes) + sum(self.costs.buffer_bytes)
        crossing = max((size for size in self.costs.cut_bytes_per_sample if size != float("inf")), default=0)
        return int(8 * weights + 4 * crossing * self.batch_size) + (4 << 20)

    @property
    def model_digest(self) -> str:
        """Tells the model that is built here from others; nothing where only time is modelled."""
        mathematics = self.server.backend
        return mathematics.layout.digest() if isinstance(mathematics, TorchStages) else ""

    def candidate_devices(self) -> list[str]:
        """All devices, the one that holds the data first."""
        central = self.settings.central or next(iter(self._devices))
        return [central, *(name for name in self._devices if name != central)]

    def build_planner(self) -> PipelinePlanner:
        return PipelinePlanner(self.job.fleet.members, self.costs, self._feed.size, self.settings)

    def build_coordinator(self, node: Node, rules: RunPolicy, books: RunProgress) -> PipelineCoordinator:
        """The coordinator's loop."""
        archive = ModelArchive(self.server.backend, self.costs.layer_count, books.round, self.server.weights)
        stops = PipelineRunRules(rules, self.job, self.server, self._test)
        fleet = tuple(self._devices)
        orders = PipelineContext(self.settings, fleet, self.build_planner(), archive, stops, books, self._feed.size)
        return PipelineCoordinator(node, orders)

    def build_device_loop(self, node: Node, belongings: object) -> PipelineDevice:
        """A device's loop, for one life; all that it has is lost with it."""
        flops, mathematics = self._devices[node.name].flops, self.server.backend
        shelf = VersionStore(node.name)
        costs = self.costs.on_device(node.name)
        return PipelineDevice(StageContext(node, self.settings, mathematics, costs, flops, self._feed, shelf))

    def trained_module(self) -> nn.Module | None:
        """The trained model."""
        mathematics = self.server.backend
        return mathematics.load_module(self.server.weights) if isinstance(mathematics, TorchStages) else None


def _build_training_setup(job: Job, task: Task, elsewhere: bool) -> PipelineSetup:
    assert job.pipeline is not None
    train, parts = task.data.train, job.pipeline.schedule.micro_batch_count
    if not len(train):
        raise DataError(f"data set {task.data.name!r} has no training samples")
    feed = MicroBatches(len(train), job.pipeline.batch, parts, job.seed)
    if parts > feed.size:
        raise SettingError(
            "pipeline.schedule.micro_batches", f"a batch of {feed.size} cannot be cut into {parts} parts"
        )
    chain = trace_layers(build_initial_module(job, task, elsewhere), task.data.shape)
    sections = StageFunctions(chain, train.batch(np.arange(min(2, len(train))))[0])
    mathematics = TorchStages(
        sections, task.loss, job.pipeline.optimizer, train, feed, job.seed, task.data.test, len(task.data.classes)
    )
    costs = pipeline_chain_costs(chain, sections.layout, sum(mathematics.moments.values()), job.pipeline.between)
    costs = _with_profiles(costs, job, chain)
    return PipelineSetup(job, costs, mathematics, feed, task.data.test)


def _build_timing_setup(job: Job, task: Task | None) -> PipelineSetup:
    """The model is built of hollow tensors and the data is not read at all."""
    assert job.pipeline is not None
    if task is not None:
        chain = trace_layers(task.build_module(job.seed), task.data.shape)
    elif isinstance(job.task, TaskSettings):
        info = job.task.data.info(None)
        with torch.device("meta"):
            module = job.task.model_factory(info.shape, len(info.classes))()
        chain = trace_layers(module, info.shape)
    else:
        raise SettingError("timing_only", "needs a [task] table or a task given in Python")
    feed = MicroBatches(job.pipeline.batch, job.pipeline.batch, job.pipeline.schedule.micro_batch_count, job.seed)
    layout = WeightLayout.of_module(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    costs = _with_profiles(pipeline_chain_costs(chain, layout, 1, job.pipeline.between), job, chain)
    return PipelineSetup(job, costs, TimingOnlyStages(costs, feed), feed, None)


def pipeline_chain_costs(
    chain: LayerChain, layout: WeightLayout, moments: int, between: str = "layers"
) -> PipelineCosts:
    """Two operations per MAC forward, more backward; what crosses at each legal cut."""
    forward = [2.0 * layer.macs for layer in chain.layers]
    block = _layer_blocks([layer.name for layer in chain.layers]) if between == "blocks" else range(len(chain.layers))
    crossing = {cut.after: float(cut.bytes) for cut in chain.cuts if block[cut.after] != block[cut.after + 1]}
    return PipelineCosts(
        forward_flop=forward,
        backward_flop=[BACKWARD_PER_FORWARD * flop for flop in forward],
        cut_bytes_per_sample=[crossing.get(layer, float("inf")) for layer in range(len(chain.layers))],
        param_bytes=[
            _layer_extent(layout.param_bounds, layer) * layout.itemsize for layer in range(layout.layer_count)
        ],
        buffer_bytes=[
            _layer_extent(layout.buffer_bounds, layer) * layout.itemsize for layer in range(layout.layer_count)
        ],
        moments=moments,
        activation_bytes=[float(layer.activation_bytes) for layer in chain.layers],
    )


def _with_profiles(costs: PipelineCosts, job: Job, chain: LayerChain) -> PipelineCosts:
    """With the measured work per layer of the devices that have a profile."""
    check_profiles(job, chain)
    works = measured_work(job, [[layer] for layer in range(len(chain.layers))])
    measured = {
        name: replace(costs, forward_flop=work.forward, backward_flop=work.backward) for name, work in works.items()
    }
    return replace(costs, measured=measured)


def _layer_blocks(names: Sequence[str]) -> Sequence[object]:
    """The outer module that each layer belongs to, as far out as there are at least four of them."""
    for depth in range(1, 1 + max(name.count(".") for name in names)):
        found = [tuple(name.split(".")[:depth]) for name in names]
        if len(set(found)) >= _LEAST_BLOCKS:
            return found
    return range(len(names))


def _layer_extent(bounds: tuple[int, ...], layer: int) -> int:
    return bounds[layer + 1] - bounds[layer]


def _check_device_names(settings: Pipeline, known: Any) -> None:
    for key, names in (("central", [settings.central] if settings.central else []), ("sources", settings.sources)):
        for name in names:
            if name not in known:
                raise SettingError(f"pipeline.{key}", f"no device is called {name!r}")
