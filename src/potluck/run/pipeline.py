"""What a job with a pipeline stands for: the chain and its costs, the mathematics, and both sides of the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.node import Node
from potluck.loops.pipeline.archive import Archive
from potluck.loops.pipeline.conductor import Conductor
from potluck.loops.pipeline.costs import ChainCosts
from potluck.loops.pipeline.device import StageDevice
from potluck.loops.pipeline.leader import Orders
from potluck.loops.pipeline.mathematics import GhostStages, StageMathematics
from potluck.loops.pipeline.planner import Planner
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.shelf import Shelf
from potluck.loops.pipeline.stage import Workshop
from potluck.loops.progress import Books
from potluck.loops.rules import Rules
from potluck.model.batches import Batches
from potluck.model.chain import Chain, trace
from potluck.model.feed import Feed
from potluck.model.profile import BACKWARD_PER_FORWARD
from potluck.model.sections import Sections
from potluck.model.stages import Stages
from potluck.model.state import Layout
from potluck.run.beginning import begun_with
from potluck.task import Task, TaskSettings, build

__all__ = ["PipelineSetup"]

_LEAST_BLOCKS = 4
_FARTHEST = 10_000  # batches, after which a stretch ends in any case


class Centre:
    """The model as it stood when the run could last be taken up, in place of the rounds loop's server."""

    def __init__(self, mathematics: StageMathematics) -> None:
        self.mathematics = mathematics
        self.numbers = mathematics.initial()

    def tensors(self) -> dict[str, Tensor]:
        return self.mathematics.tensors(self.numbers)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self.numbers = self.mathematics.restore(tensors)


class Stops:
    """The run's rules as the pipeline loop asks for them."""

    def __init__(self, rules: Rules, job: Job, centre: Centre, test: Batches | None) -> None:
        self._rules = rules
        self._job = job
        self._centre = centre
        self._test = test
        self.ending = rules.ending
        self.interruption = rules.interruption
        self.wants_score = rules.wants_score
        self.save_due = rules.save_due
        self.save = rules.save
        self.watch = rules.watch

    def next_stop(self, batch: int) -> int:
        for stop in range(batch + 1, batch + _FARTHEST):
            if self.wants_score(stop) or self.save_due(stop) or stop == self._job.stop.rounds:
                return stop
        return batch + _FARTHEST

    def evaluate(self, numbers: Any) -> dict[str, float]:
        mathematics = self._centre.mathematics
        if not isinstance(mathematics, Stages) or self._test is None:
            return {}
        return mathematics.evaluate(numbers, self._test)

    def keep(self, numbers: Any, books: Books, now: float) -> None:
        self._centre.numbers = numbers
        self.save(books, now)


class PipelineSetup:
    """All that is worked out before a pipeline begins; it stands where `Setup` stands for rounds."""

    def __init__(self, job: Job, costs: ChainCosts, mathematics: StageMathematics, feed: Feed, test: Batches | None):
        self.job = job
        self.costs = costs
        self.server = Centre(mathematics)
        self._feed = feed
        self._test = test
        self._devices = {device.name: device for device in job.fleet.members}
        _check_names(self.settings, self._devices.keys())

    @staticmethod
    def of(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> PipelineSetup:
        found = _timing_only(job, task) if job.timing_only else _real(job, task or build(job.task, data), elsewhere)
        found.planner().check_memory(found.candidates())
        return found

    @property
    def settings(self) -> Pipeline:
        assert self.job.pipeline is not None
        return self.job.pipeline

    @property
    def batch(self) -> int:
        """Samples in a batch."""
        return self._feed.size

    @property
    def limit_bytes(self) -> int:
        """The most that one message of this job can take: all layers with what their optimizer remembers, or a batch
        between two layers."""
        weights = sum(self.costs.param_bytes) + sum(self.costs.buffer_bytes)
        crossing = max((size for size in self.costs.crossing_bytes if size != float("inf")), default=0)
        return int(8 * weights + 4 * crossing * self.batch) + (4 << 20)

    @property
    def model_digest(self) -> str:
        """Tells the model that is built here from others; nothing where only time is modelled."""
        mathematics = self.server.mathematics
        return mathematics.layout.digest() if isinstance(mathematics, Stages) else ""

    def candidates(self) -> list[str]:
        """All devices, the one that holds the data first."""
        central = self.settings.central or next(iter(self._devices))
        return [central, *(name for name in self._devices if name != central)]

    def planner(self) -> Planner:
        return Planner(self.job.fleet.members, self.costs, self._feed.size, self.settings)

    def coordinator(self, node: Node, rules: Rules, books: Books) -> Conductor:
        """The coordinator's loop."""
        archive = Archive(self.server.mathematics, self.costs.layers, books.round, self.server.numbers)
        stops = Stops(rules, self.job, self.server, self._test)
        fleet = tuple(self._devices)
        orders = Orders(self.settings, fleet, self.planner(), archive, stops, books, self._feed.size)
        return Conductor(node, orders)

    def device_loop(self, node: Node, belongings: object) -> StageDevice:
        """A device's loop, for one life; all that it has is lost with it."""
        flops, mathematics = self._devices[node.name].flops, self.server.mathematics
        shelf = Shelf(node.name)
        return StageDevice(Workshop(node, self.settings, mathematics, self.costs, flops, self._feed, shelf))

    def finished(self) -> nn.Module | None:
        """The trained model."""
        mathematics = self.server.mathematics
        return mathematics.module(self.server.numbers) if isinstance(mathematics, Stages) else None


def _real(job: Job, task: Task, elsewhere: bool) -> PipelineSetup:
    assert job.pipeline is not None
    train, parts = task.data.train, job.pipeline.schedule.parts
    if not len(train):
        raise DataError(f"data set {task.data.name!r} has no training samples")
    feed = Feed(len(train), job.pipeline.batch, parts, job.seed)
    if parts > feed.size:
        raise SettingError(
            "pipeline.schedule.micro_batches", f"a batch of {feed.size} cannot be cut into {parts} parts"
        )
    chain = trace(begun_with(job, task, elsewhere), task.data.shape)
    sections = Sections(chain, train.batch(np.arange(min(2, len(train))))[0])
    mathematics = Stages(
        sections, task.loss, job.pipeline.optimizer, train, feed, job.seed, task.data.test, len(task.data.classes)
    )
    costs = chain_costs(chain, sections.layout, sum(mathematics.moments.values()), job.pipeline.between)
    return PipelineSetup(job, costs, mathematics, feed, task.data.test)


def _timing_only(job: Job, task: Task | None) -> PipelineSetup:
    """The model is built of hollow tensors and the data is not read at all."""
    assert job.pipeline is not None
    if task is not None:
        chain = trace(task.module(job.seed), task.data.shape)
    elif isinstance(job.task, TaskSettings):
        info = job.task.data.info(None)
        with torch.device("meta"):
            module = job.task.factory(info.shape, len(info.classes))()
        chain = trace(module, info.shape)
    else:
        raise SettingError("timing_only", "needs a [task] table or a task given in Python")
    feed = Feed(job.pipeline.batch, job.pipeline.batch, job.pipeline.schedule.parts, job.seed)
    layout = Layout.of(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    costs = chain_costs(chain, layout, 1, job.pipeline.between)
    return PipelineSetup(job, costs, GhostStages(costs, feed), feed, None)


def chain_costs(chain: Chain, layout: Layout, moments: int, between: str = "layers") -> ChainCosts:
    """Two operations per MAC forward, more backward; what crosses at each legal cut."""
    forward = [2.0 * layer.macs for layer in chain.layers]
    block = _blocks([layer.name for layer in chain.layers]) if between == "blocks" else range(len(chain.layers))
    crossing = {cut.after: float(cut.bytes) for cut in chain.cuts if block[cut.after] != block[cut.after + 1]}
    return ChainCosts(
        forward_flop=forward,
        backward_flop=[BACKWARD_PER_FORWARD * flop for flop in forward],
        crossing_bytes=[crossing.get(layer, float("inf")) for layer in range(len(chain.layers))],
        param_bytes=[_span(layout.param_bounds, layer) * layout.itemsize for layer in range(layout.layers)],
        buffer_bytes=[_span(layout.buffer_bounds, layer) * layout.itemsize for layer in range(layout.layers)],
        moments=moments,
        activation_bytes=[float(layer.activation_bytes) for layer in chain.layers],
    )


def _blocks(names: Sequence[str]) -> Sequence[object]:
    """The outer module that each layer belongs to, as far out as there are at least four of them."""
    for depth in range(1, 1 + max(name.count(".") for name in names)):
        found = [tuple(name.split(".")[:depth]) for name in names]
        if len(set(found)) >= _LEAST_BLOCKS:
            return found
    return range(len(names))


def _span(bounds: tuple[int, ...], layer: int) -> int:
    return bounds[layer + 1] - bounds[layer]


def _check_names(settings: Pipeline, known: Any) -> None:
    for key, names in (("central", [settings.central] if settings.central else []), ("sources", settings.sources)):
        for name in names:
            if name not in known:
                raise SettingError(f"pipeline.{key}", f"no device is called {name!r}")
