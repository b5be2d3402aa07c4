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
from potluck.data.streams.feed import Feed
from potluck.errors import DataError, SettingError
from potluck.job import Job
from potluck.loops.costs import Costs
from potluck.loops.device import DeviceLoop
from potluck.loops.estimates import Estimates, LinkPrior
from potluck.loops.mathematics import DeviceMathematics, GhostServer, GhostTrainer, ServerMathematics, Whom
from potluck.loops.node import Node
from potluck.loops.parts.streaming import Flow, most_wanted, wanted
from potluck.loops.progress import Books
from potluck.loops.rounds import Coordinator
from potluck.loops.rules import Rules
from potluck.loops.sharing import Sharing
from potluck.loops.supply import Streamed, Supply
from potluck.model.carving import Carver
from potluck.model.chain import Chain, trace
from potluck.model.hollow import Hollow
from potluck.model.server import Server
from potluck.model.state import Layout, State
from potluck.run.beginning import begun_with
from potluck.run.belongings import Belongings
from potluck.run.cutting import settled
from potluck.run.grouping import fitting_split, held, held_out
from potluck.run.heavy import server_kind, trainer_kind, weight_of
from potluck.run.sizing import Sizing, carver_of, narrowed, small_share
from potluck.run.skewing import remedy_of
from potluck.run.streams import replayed
from potluck.task import Task, TaskSettings, build

__all__ = ["Setup"]

_OWN = 1_000_000  # samples that a device may have of its own, beside what the coordinator knows of

Shards = Mapping[str, npt.NDArray[np.int64]]


@dataclass
class Setup:
    """All that is worked out before the run begins; `job` leaves nothing open."""

    job: Job
    layout: Layout
    costs: Costs
    shards: Shards
    server: ServerMathematics
    trainer: DeviceMathematics
    module: nn.Module | None
    feeds: Callable[[str], Feed] | None = None  # where data streams in
    data: Dataset | None = None
    carver: Carver | None = None
    small: float | None = None  # the share of the whole model's MACs, where everyone trains a smaller one

    def __post_init__(self) -> None:
        self._devices = {device.name: device for device in self.job.fleet.members}
        self._forecasts: dict[str, float] = {}
        self.sizing = Sizing(self.job, self.costs, self.carver, self.small)

    @staticmethod
    def of(job: Job, task: Task | None, data: Path | None, elsewhere: bool = False) -> Setup:
        """`elsewhere`: the network's numbers come from a checkpoint or from the coordinator, not from `start`."""
        return _timing_only(job, task) if job.timing_only else _real(job, task or build(job.task, data), elsewhere)

    @property
    def limit_bytes(self) -> int:
        """The most that one message of this job can take."""
        return 2 * self.layout.nbytes + (1 << 20)

    @property
    def model_digest(self) -> str:
        """Tells the model that is built here from others."""
        return self.layout.digest()

    # --- the two sides ---------------------------------------------------------------------------------------------

    def coordinator(self, node: Node, rules: Rules, books: Books) -> Coordinator:
        """The coordinator's loop."""
        rounds, layers = self.job.rounds, self.costs.layers
        return Coordinator(
            node, rounds, self.server, layers, self.forecast, self.most_samples, rules, books, self._sharing()
        )

    def device_loop(self, node: Node, belongings: Belongings) -> DeviceLoop:
        """A device's loop, for one life."""
        name, life = node.name, node.incarnation
        seen = belongings.seen(name, life, self.link_prior(name))
        memory = belongings.memory(name, life, self.trainer.memory)
        supply = self._supply(node, belongings, self.costs_on(name), seen)
        affordable, share = self.sizing.affordable(name), self.sizing.share
        return DeviceLoop(node, self.job.rounds, self.trainer, self.turn_costs, supply, seen, memory, affordable, share)

    def _supply(self, node: Node, belongings: Belongings, costs: Costs, seen: Estimates) -> Supply:
        rounds, feeds = self.job.rounds, self.feeds
        if feeds is None:
            return held(node, rounds, self.shards[node.name], self.data, self.carver)
        feed = belongings.feed(node.name, node.incarnation, lambda: feeds(node.name), node.now())
        shape, classes = (self.data.shape, len(self.data.classes)) if self.data is not None else ((), 0)
        return Streamed(node, rounds, feed, 1 / costs.step(1), shape, classes, seen)

    def _sharing(self) -> Sharing | None:
        stream = self.job.stream
        if stream is None or stream.injection is None or self.data is None:
            return None
        return Sharing(stream.injection, self.data.sample_bytes, self.job.seed)

    # --- figures ---------------------------------------------------------------------------------------------------

    def costs_on(self, device: str) -> Costs:
        """Of the whole model, on a device."""
        return self.costs.on(self._devices[device].flops)

    def turn_costs(self, whom: Whom) -> Costs:
        """Of what a device is sent for a turn."""
        return self.sizing.costs(whom)

    def link_prior(self, device: str) -> LinkPrior:
        """What a device takes for granted of its link to the coordinator: the fleet's own figures."""
        own, centre = self._devices[device].link, self.job.fleet.coordinator.access
        return LinkPrior(
            up=min(own.up, centre.down),
            down=min(own.down, centre.up),
            overhead=own.overhead + centre.overhead,
            round_trip=2 * (own.latency + centre.latency),
        )

    def forecast(self, device: str) -> float:
        """About how many seconds a device takes for its part of a round, by its nominal figures."""
        if device not in self._forecasts:
            self._forecasts[device] = self._forecast(device)
        return self._forecasts[device]

    def _forecast(self, device: str) -> float:
        found, rounds = self._devices[device], self.job.rounds
        if self.feeds is None:
            held = len(self.shards[device])
            samples = sum(rounds.batching.sizes(held, rounds.local.passes(rounds.batching.per_epoch(held))))
        else:
            samples = wanted(rounds.batching, Flow(self.feeds(device).rate(0.0)))
        bytes_s = sum(self.costs.pull_bytes) / found.link.down + sum(self.costs.push_bytes) / found.link.up
        return float(self.costs.on(found.flops).step(samples) + bytes_s + 4 * found.link.latency)

    def most_samples(self, device: str) -> int:
        """How many samples a device can train on in a turn, beside what others give it: no update counts for more."""
        batching = self.job.rounds.batching
        if self.feeds is not None:
            return most_wanted(batching)
        held = max(2 * len(self.shards[device]), _OWN)  # some make up one more for each that they have
        passes = self.job.rounds.local.passes(batching.per_epoch(held)) or 1
        return passes * (batching.size_for(held) + 1)  # one that is left over joins the mini-batch before

    def finished(self) -> nn.Module | None:
        """The trained model."""
        if self.module is not None and isinstance(self.server, Server):
            _load(self.module, self.server.finished(), self.layout)
        return self.module


def _real(job: Job, task: Task, elsewhere: bool) -> Setup:
    module = begun_with(job, task, elsewhere)
    whole = trace(module, task.data.shape)
    job = settled(job, whole, task.data.train)
    chain = narrowed(job, whole, task.data.train)
    module, layout, rounds = chain.module, _layout(chain, job), job.rounds
    shards, costs, data = _shards(job, task, chain), _costs(chain, layout, job), task.data
    carver = carver_of(job, chain, layout, Sizing(job, costs, None).affordable, data.train, shards)
    weight, codec = weight_of(job, chain), rounds.codec
    remedy = remedy_of(job, data, shards, carver)
    trainer = trainer_kind(weight)(module, layout, task.loss, data.train, rounds.local, codec, carver, remedy)
    server = server_kind(weight)(
        module, layout, task.loss, data.test, rounds.merge, rounds.server, rounds.codec, carver
    )
    feeds, small = replayed(job, shards, data.train), small_share(job, chain, whole)
    return Setup(job, layout, costs, shards, server, trainer, module, feeds, data, carver, small)


def _timing_only(job: Job, task: Task | None) -> Setup:
    """The model is built of hollow tensors and the data is not read at all."""
    if task is not None:
        whole = trace(task.module(job.seed), task.data.shape)
    elif isinstance(job.task, TaskSettings):
        info = job.task.data.info(None)
        with Hollow():
            module = job.task.factory(info.shape, len(info.classes))()
        whole = trace(module, info.shape)
    else:
        raise SettingError("timing_only", "needs a [task] table or a task given in Python")
    job = settled(job, whole, None)
    chain = narrowed(job, whole)
    layout = _layout(chain, job)
    costs = _costs(chain, layout, job)
    carver = carver_of(job, chain, layout, Sizing(job, costs, None).affordable, None)
    shards, sizing = _Alike(np.arange(job.samples)), Sizing(job, costs, carver)
    server, trainer = GhostServer(sizing.costs), GhostTrainer(sizing.costs, carver)
    feeds, small = replayed(job, shards, None), small_share(job, chain, whole)
    return Setup(job, layout, costs, shards, server, trainer, None, feeds, None, carver, small)


class _Alike(dict[str, npt.NDArray[np.int64]]):
    """Every device holds the same number of samples."""

    def __init__(self, held: npt.NDArray[np.int64]) -> None:
        super().__init__()
        self._held = held

    def __missing__(self, device: str) -> npt.NDArray[np.int64]:
        return self._held


def _layout(chain: Chain, job: Job) -> Layout:
    """The model's numbers layer by layer, or finer, where transfers may be cut inside a layer."""
    layout = Layout.of(chain.module, [(layer.parameters, layer.buffers) for layer in chain.layers])
    finest = job.rounds.transfer.finest
    return layout if finest is None else layout.split(finest)


def _costs(chain: Chain, layout: Layout, job: Job) -> Costs:
    """Two operations per MAC forward, twice that backward; what the codec makes of the bytes."""
    forward = [0.0] * layout.layers
    for found, units in zip(chain.layers, layout.units(), strict=True):
        forward[units[-1]] = 2.0 * found.macs  # a layer begins when all of it is there, and gives all of it at once
    pull = [layout.segment_bytes(layer, layer) for layer in range(layout.layers)]
    push = []
    for layer in range(layout.layers):
        params, buffers = layout.slices(layer, layer)
        kept = (buffers.stop - buffers.start) * layout.itemsize
        push.append(job.rounds.codec.nbytes(params.stop - params.start, layout.itemsize) + kept)
    return weight_of(job, chain).on(Costs(forward, [2 * flop for flop in forward], pull, push))


def _shards(job: Job, task: Task, chain: Chain) -> Shards:
    names = [device.name for device in job.fleet.members]
    train = task.data.train
    if len(names) > len(train):
        raise DataError(
            f"{len(names)} devices share {len(train)} samples of {task.data.name!r}; each needs at least one"
        )
    labels = train.labels if train.y.dtype == torch.int64 else np.zeros(len(train), dtype=np.int64)
    dealt = fitting_split(job, chain).assign(labels, len(names), seeds.generator(job.seed, "split"), train.owner)
    withheld = held_out(job, len(train))
    return {name: shard[~np.isin(shard, withheld)] for name, shard in zip(names, dealt, strict=True)}


def _load(module: nn.Module, state: State, layout: Layout) -> None:
    named: dict[str, Any] = state.named(layout)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in named.items():
            tensors[name].copy_(value if tensors[name].is_floating_point() else value.round())
