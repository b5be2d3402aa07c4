"""A pipeline job, prepared: the model as a chain of layers, what they cost, and both sides of the loop."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from potluck.data import Dataset
from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.leader import RunPolicy
from potluck.loops.node import Node
from potluck.loops.pipeline.link_estimates import ReceptionLog
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.pipeline_coordinator import PipelineCoordinator
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.pipeline_device import PipelineDevice
from potluck.loops.pipeline.pipeline_planner import PipelinePlanner
from potluck.loops.pipeline.pipeline_stage import StageContext
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.stage_backend import StageBackend, TimingOnlyStages
from potluck.loops.pipeline.stage_schedules import SingleDeviceSchedule
from potluck.loops.pipeline.version_store import VersionStore
from potluck.loops.run_progress import RunProgress
from potluck.model import weights_file
from potluck.model.frozen_weights import FrozenWeights
from potluck.model.indexed_dataset import IndexedDataset, MicroBatches, PipelineData
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.meta_copy import input_dtype
from potluck.model.metrics import TaskMetrics
from potluck.model.model_state import WeightLayout
from potluck.model.stage_function import StageFunctions
from potluck.model.tied_weights import carry_tied_weights, uncut_reason
from potluck.model.torch_stages import EVALUATION_BATCH, TorchStages
from potluck.model.training_costs import backward_flops, forward_flops
from potluck.model.training_probe import probe_metrics, probe_single_sample, probe_training
from potluck.run.device_state import DeviceStates
from potluck.run.frozen_fetching import build_frozen_fetcher, devices_build_frozen
from potluck.run.initial_weights import build_initial_module, input_spec, trace_shape_only_chain
from potluck.run.job_plan import JobPlan, PipelineForecast
from potluck.run.measured_costs import check_profiles, measured_work
from potluck.run.metric_settings import check_metric_settings
from potluck.task import Task, build_task

__all__ = ["PipelineSetup"]

_log = logging.getLogger("potluck")

_MIN_BLOCKS = 4
_MAX_BATCHES_UNTIL_DRAIN = 10_000


class CommittedModel:
    """The model of the last committed batch from which the run can be resumed."""

    def __init__(self, backend: StageBackend) -> None:
        self.backend = backend
        self.weights = backend.initial_weights()
        self.best_weights: Any = None

    def tensors(self) -> dict[str, Tensor]:
        return self.backend.tensors(self.weights)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.weights = self.backend.restore(tensors)


class PipelineRunRules:
    """The run's policy as the pipeline loop asks for it."""

    def __init__(self, policy: RunPolicy, job: Job, model: CommittedModel, test: IndexedDataset | None) -> None:
        self._job = job
        self._model = model
        self._test = test
        self.stop_outcome = policy.stop_outcome
        self.interrupt_outcome = policy.interrupt_outcome
        self.check_may_commit = policy.check_may_commit
        self.evaluation_due = policy.evaluation_due
        self.checkpoint_due = policy.checkpoint_due
        self.save_checkpoint = policy.save_checkpoint
        self.report_progress = policy.report_progress
        self.metrics = policy.metrics
        self._keep_best = policy.keep_best

    def next_drain_batch(self, batch: int) -> int:
        for stop in range(batch + 1, batch + _MAX_BATCHES_UNTIL_DRAIN):
            if self.evaluation_due(stop) or self.checkpoint_due(stop) or stop == self._job.stop.rounds:
                return stop
        return batch + _MAX_BATCHES_UNTIL_DRAIN

    def evaluate_model(self, weights: Any) -> dict[str, float]:
        backend = self._model.backend
        if not isinstance(backend, TorchStages) or self._test is None:
            return {}
        return backend.evaluate_model(weights, self._test)

    def save_model(self, weights: Any, progress: RunProgress, now: float) -> None:
        self._model.weights = weights
        self._keep_best(progress)
        self.save_checkpoint(progress, now)

    def keep_best(self, progress: RunProgress) -> None:
        """Nothing yet: the version that was evaluated is handed over by `save_model`."""


class PipelineSetup:
    """What a pipeline job is prepared into."""

    def __init__(
        self,
        job: Job,
        costs: PipelineCosts,
        backend: StageBackend,
        batches: MicroBatches,
        test: IndexedDataset | None,
        metrics: TaskMetrics | None = None,
    ):
        self.job = job
        self.data: Dataset | None = None  # None where only time is modelled
        self.frozen = FrozenWeights(())
        self.builds_frozen = True  # whether a device builds the same frozen weights from the job
        self.costs = costs
        self.server = CommittedModel(backend)
        self._batches = batches
        self._test = test
        self.metrics = metrics or TaskMetrics()
        self._devices = {device.name: device for device in job.fleet.members}
        _check_device_names(self.settings, self._devices.keys())

    @staticmethod
    def from_job(job: Job, task: Task | None, data: Path | None, load_weights: bool = True) -> PipelineSetup:
        """Without `load_weights` the weights come from a checkpoint or from the coordinator, not from `start`."""
        setup = (
            _build_timing_setup(job, task)
            if job.timing_only
            else _build_training_setup(job, task or build_task(job.task, data), load_weights)
        )
        setup.build_planner().check_memory(setup.candidate_devices())
        return setup

    @property
    def settings(self) -> Pipeline:
        assert self.job.pipeline is not None
        return self.job.pipeline

    @property
    def module(self) -> nn.Module | None:
        """The model; None where only time is modelled."""
        backend = self.server.backend
        return backend.chain.module if isinstance(backend, TorchStages) else None

    @property
    def batch_size(self) -> int:
        """Samples in a batch."""
        return self._batches.size

    @property
    def max_message_bytes(self) -> int:
        """The most that one message can take: all layers with optimizer state, or a batch between two layers."""
        weights = sum(self.costs.param_bytes) + sum(self.costs.buffer_bytes)
        crossing = max((size for size in self.costs.cut_bytes_per_sample if size != float("inf")), default=0)
        crossing_bytes = max(4 * self.batch_size, EVALUATION_BATCH) * crossing
        return max(int(8 * weights + crossing_bytes), self.frozen.message_bytes) + (4 << 20)

    @property
    def model_digest(self) -> str:
        """Identifies the model by the names and shapes of its layers; empty where only time is modelled."""
        backend = self.server.backend
        return backend.layout.digest() + self.frozen.structure_digest() if isinstance(backend, TorchStages) else ""

    def candidate_devices(self) -> list[str]:
        """All devices, the one that holds the data first."""
        central = self.settings.central or next(iter(self._devices))
        return [central, *(name for name in self._devices if name != central)]

    def build_planner(self) -> PipelinePlanner:
        return PipelinePlanner(self.job.fleet.members, self.costs, self._batches.size, self.settings)

    def build_coordinator(self, node: Node, policy: RunPolicy, progress: RunProgress) -> PipelineCoordinator:
        """The coordinator's loop."""
        archive = ModelArchive(self.server.backend, self.costs.layer_count, progress.round, self.server.weights)
        rules = PipelineRunRules(policy, self.job, self.server, self._test)
        fleet, planner = tuple(self._devices), self.build_planner()
        frozen = self.frozen if self.frozen.nbytes else None
        context = PipelineContext(
            self.settings, fleet, planner, archive, rules, progress, self.batch_size, frozen, self.max_message_bytes
        )
        return PipelineCoordinator(node, context)

    def build_device_loop(self, node: Node, states: DeviceStates) -> PipelineDevice:
        """A device's loop, for one incarnation; a pipeline's device keeps no trained state beyond it."""
        flops, backend = self._devices[node.name].flops, self.server.backend
        costs, versions = self.costs.on_device(node.name), VersionStore(node.name)
        context = StageContext(node, self.settings, backend, costs, flops, self._batches, versions, ReceptionLog())
        return PipelineDevice(context, build_frozen_fetcher(self, node, states, self.settings.retry))

    def with_frozen(self, frozen: FrozenWeights, builds_frozen: bool) -> PipelineSetup:
        """The setup of a model that has these frozen weights."""
        self.frozen, self.builds_frozen = frozen, builds_frozen
        return self

    def held_samples(self, name: str) -> int | None:
        """Nothing depends on it: one device's batches pass through all."""
        return None

    def check_device(self, name: str) -> None:
        """A stage computes in the model's own precision, which every machine can."""

    def live_inputs(self, node: Node) -> contextlib.nullcontext[None]:
        """A pipeline's devices have their data from the start."""
        return contextlib.nullcontext()

    def save_trained_model(self, folder: Path | None) -> tuple[nn.Module | None, Mapping[str, Any]]:
        """The trained model, saved to the folder if there is one."""
        backend = self.server.backend
        if not isinstance(backend, TorchStages):
            return None, {}
        module = backend.load_module(self.server.weights)
        if folder is not None:
            weights_file.save_weights(module, folder / weights_file.WEIGHTS_FILE)
        return module, {}

    def keep_best(self) -> None:
        self.server.best_weights = self.server.weights

    def build_best_module(self) -> nn.Module:
        """A copy of the model with the weights of the version that was kept."""
        backend = self.server.backend
        assert isinstance(backend, TorchStages)
        return backend.load_module(self.server.best_weights, copy.deepcopy(backend.chain.module))

    def forecast(self) -> JobPlan:
        """The layout that the planner chooses, and what each stage takes."""
        planner, candidates, schedule = self.build_planner(), self.candidate_devices(), self.settings.schedule
        if self.settings.layer_costs == "measured":
            planner.compute.set_reference(candidates[0], planner.modelled_layers(candidates[0]))
        plan = planner.plan_layout(candidates)
        durations, parts = planner.stage_durations(plan.cuts, plan.order), schedule.micro_batch_count
        left_out = tuple(name for name in self._devices if name not in plan.order)
        memory = planner.stage_memory_bytes(plan)
        forecast = PipelineForecast(plan, durations, self.batch_size, parts, left_out, memory, schedule.flushes)
        return JobPlan(self.job, pipeline=forecast)


def _build_training_setup(job: Job, task: Task, load_weights: bool) -> PipelineSetup:
    assert job.pipeline is not None
    metrics = check_metric_settings(job, task)
    train, parts = task.data.train, job.pipeline.schedule.micro_batch_count
    if not len(train):
        raise DataError(f"data set {task.data.name!r} has no training samples")
    if train.is_stream:
        raise DataError(
            f"{task.data.name!r} is an iterable data set, which streams in; a pipeline needs one with a length"
        )
    batches = MicroBatches(len(train), job.pipeline.batch, parts, job.seed)
    if parts > batches.size:
        raise SettingError(
            "pipeline.schedule.micro_batches", f"a batch of {batches.size} cannot be cut into {parts} parts"
        )
    module = build_initial_module(job, task, load_weights)
    samples = task.data.with_dtype(input_dtype(module))
    chain = carry_tied_weights(trace_layers(module, input_spec(samples)))
    _warn_if_uncut(job.pipeline, chain)
    inputs, targets = samples.train.batch(np.arange(min(2, len(train))))
    probe_training(module, task.loss, inputs, targets)
    probe_metrics(module, task.loss, metrics, samples.test)
    if batches.count(0) == 1:
        probe_single_sample(module, task.loss, samples.train, "pipeline.batch")
    functions = StageFunctions(chain, inputs)
    data = PipelineData(samples.train, batches, samples.test, len(samples.classes))
    backend = TorchStages(functions, task.loss, job.pipeline.optimizer, data, job.seed, metrics)
    moments = sum(backend.moments.values())
    costs = pipeline_chain_costs(chain, functions.layout, moments, job.pipeline.between, batches.count(0))
    setup = PipelineSetup(job, _with_profiles(costs, job, chain), backend, batches, samples.test, metrics)
    setup.data = samples
    return setup.with_frozen(FrozenWeights.of_chain(chain, functions.layout), devices_build_frozen(job, task))


def _warn_if_uncut(settings: Pipeline, chain: LayerChain) -> None:
    reason = uncut_reason(chain)
    if reason is not None and not isinstance(settings.schedule, SingleDeviceSchedule):
        _log.warning(
            "pipeline: one device trains the whole model, which cannot be cut into stages: %s; recipes of rounds, such"
            " as 'fedavg', use all devices",
            reason,
        )


def _build_timing_setup(job: Job, task: Task | None) -> PipelineSetup:
    assert job.pipeline is not None
    chain = carry_tied_weights(trace_shape_only_chain(job, task))
    batches = MicroBatches(job.pipeline.batch, job.pipeline.batch, job.pipeline.schedule.micro_batch_count, job.seed)
    layout = WeightLayout.of_chain(chain)
    costs = pipeline_chain_costs(chain, layout, 1, job.pipeline.between, batches.count(0))
    costs = _with_profiles(costs, job, chain)
    setup = PipelineSetup(job, costs, TimingOnlyStages(costs, batches), batches, None)
    return setup.with_frozen(FrozenWeights.of_chain(chain, layout), devices_build_frozen(job, task))


def pipeline_chain_costs(
    chain: LayerChain, layout: WeightLayout, moments: int, between: str = "layers", samples: int = 1
) -> PipelineCosts:
    """Two operations per MAC forward, more backward; the bytes that cross each legal cut.

    What crosses once per micro-batch is divided by its `samples`.
    """
    block = _layer_blocks([layer.name for layer in chain.layers]) if between == "blocks" else range(len(chain.layers))
    crossing = {
        cut.after: cut.bytes + cut.constant_bytes / max(1, samples)
        for cut in chain.cuts
        if block[cut.after] != block[cut.after + 1]
    }
    frozen = FrozenWeights.of_chain(chain, layout)
    return PipelineCosts(
        forward_flop=[forward_flops(layer.macs) for layer in chain.layers],
        backward_flop=[backward_flops(layer.macs) for layer in chain.layers],
        cut_bytes_per_sample=[crossing.get(layer, float("inf")) for layer in range(len(chain.layers))],
        param_bytes=[
            _layer_extent(layout.param_bounds, layer) * layout.itemsize for layer in range(layout.layer_count)
        ],
        buffer_bytes=[
            _layer_extent(layout.buffer_bounds, layer) * layout.itemsize for layer in range(layout.layer_count)
        ],
        moments=moments,
        activation_bytes=[float(layer.activation_bytes) for layer in chain.layers],
        frozen_bytes=[frozen.range_bytes(layer, layer) for layer in range(layout.layer_count)],
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
    """The outer module that each layer belongs to, at the smallest depth with at least four of them.

    A list of blocks that has most of the layers, as in transformers, does not count as one of them.
    """
    for depth in range(1, 1 + max(name.count(".") for name in names)):
        blocks = [tuple(name.split(".")[:depth]) for name in names]
        (largest, size), *_ = Counter(blocks).most_common(1)
        inside = [name.split(".")[depth:] for name, block in zip(names, blocks, strict=True) if block == largest]
        is_list = 2 * size > len(names) and all(path and path[0].isdigit() for path in inside)
        if len(set(blocks)) >= _MIN_BLOCKS and not is_list:
            return blocks
    return range(len(names))


def _layer_extent(bounds: tuple[int, ...], layer: int) -> int:
    return bounds[layer + 1] - bounds[layer]


def _check_device_names(settings: Pipeline, known: Any) -> None:
    for key, names in (("central", [settings.central] if settings.central else []), ("sources", settings.sources)):
        for name in names:
            if name not in known:
                raise SettingError(f"pipeline.{key}", f"no device is called {name!r}")
    if settings.data_copies > len(known):
        raise SettingError(
            "pipeline.data_copies", f"{settings.data_copies} devices cannot hold the data, the fleet has {len(known)}"
        )
