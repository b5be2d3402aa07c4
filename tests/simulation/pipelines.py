"""Small pipelines for tests, reference training loops, and checks of their journals."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import potluck
from potluck.data import Dataset, from_tensors
from potluck.job import make
from potluck.journal import Instant, JournalRecord, Span, read_journal
from potluck.model.indexed_dataset import MicroBatches, PipelineData
from potluck.model.layer_chain import trace_layers
from potluck.model.stage_function import StageFunctions
from potluck.model.torch_stages import TorchStages
from potluck.planning.schedule import backward_ready, forward_ready
from potluck.run.pipeline_setup import PipelineSetup, pipeline_chain_costs
from potluck.run.run_opening import create_run
from potluck.run.run_result import run_to_end
from potluck.run.simulated_run import run_simulated_world

__all__ = [
    "PipelineJournal",
    "TracedNetwork",
    "assert_same_weights",
    "data_of",
    "deep_net",
    "delayed_sgd",
    "job_of",
    "plain_sgd",
    "small_net",
]

SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3}
Versions = Callable[[int, int], int]  # (batch, layer) → version


def small_net() -> nn.Module:
    """Four layers with weights, batch norms among them."""
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Conv2d(5, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 16, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def deep_net(layers: int = 6, width: int = 5) -> nn.Module:
    """Any number of layers with hardly any computation."""
    inner = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*inner, nn.Linear(width, 3))


def data_of(shape: tuple[int, ...], samples: int = 60) -> Dataset:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(samples, *shape, generator=generator)
    labels = torch.randint(0, 3, (samples,), generator=generator)
    return from_tensors(inputs, labels, inputs[:20], labels[:20], name="small", classes=("a", "b", "c"))


def job_of(devices: Sequence[Mapping[str, Any]] | int, **settings: Any) -> potluck.Job:
    """A job for a few devices; `pipeline` overrides the default settings."""
    device_tables = (
        [{"name": f"d{index}", "flops": "1 MFLOP/s"} for index in range(devices)]
        if isinstance(devices, int)
        else devices
    )
    fleet = {"devices": list(device_tables), **settings.pop("fleet", {})}
    pipeline = {"batch": 12, "optimizer": SGD, **settings.pop("pipeline", {})}
    tables = {"task": "tests.simulation.pipelines:unused", "recipe": "ftpipehd", "stop": {"rounds": 14}, "evaluate": 0}
    return make({**tables, "fleet": fleet, "pipeline": pipeline, **settings})


class TracedNetwork:
    """A network that is traced once and used for many runs."""

    def __init__(self, net: nn.Module, data: Dataset) -> None:
        self.net, self.data = net, data
        chain = trace_layers(copy.deepcopy(net), tuple(data.shape))
        self._sections = StageFunctions(chain, data.train.x[:2])
        self._start = copy.deepcopy(chain.module.state_dict())
        self.layer_of = {name: number for number, layer in enumerate(chain.layers) for name in layer.parameters}

    def simulate(self, job: potluck.Job, folder: Path) -> potluck.Result:
        """Run the job as `potluck.simulate` does."""
        assert job.pipeline is not None
        chain, train = self._sections.chain, self.data.train
        chain.module.load_state_dict(self._start)
        feed = MicroBatches(len(train), job.pipeline.batch, job.pipeline.schedule.micro_batch_count, job.seed)
        test = self.data.test if job.pipeline.evaluation == "pipeline" else None
        data = PipelineData(train, feed, test, len(self.data.classes))
        stages = TorchStages(self._sections, nn.functional.cross_entropy, job.pipeline.optimizer, data, job.seed)
        costs = pipeline_chain_costs(chain, self._sections.layout, sum(stages.moments.values()))
        setup = PipelineSetup(job, costs, stages, feed, self.data.test)
        with create_run(setup, folder, None, lambda: False) as store:
            return run_to_end(setup, store, partial(run_simulated_world, setup, store, 0))


class PipelineJournal:
    """The journal of a pipeline run."""

    def __init__(self, folder: Path) -> None:
        self.records: list[JournalRecord] = list(read_journal(folder / "journal.jsonl"))
        self.partitions = {instant.fields["term"]: instant.fields for instant in self.instants("partition")}

    def instants(self, name: str) -> list[Instant]:
        return [record for record in self.records if isinstance(record, Instant) and record.name == name]

    def spans(self, name: str) -> list[Span]:
        return [record for record in self.records if isinstance(record, Span) and record.name == name]

    def committed(self) -> list[int]:
        """The term of each batch of the final history; a skipped or repeated batch is an error."""
        terms: list[int] = []
        for record in self.records:
            if isinstance(record, Instant) and record.name == "rolled back":
                assert record.fields["to"] <= len(terms)
                del terms[record.fields["to"] :]
            elif isinstance(record, Instant) and record.name == "committed":
                assert record.fields["batch"] == len(terms), f"batch {len(terms)} is skipped or committed twice"
                terms.append(record.fields["term"])
        return terms

    def versions(self, micro_batches: int = 1) -> Versions:
        """The version of a layer that a committed micro-batch used, as the stages recorded it."""
        used = {
            (span.fields["term"], span.fields["stage"], span.fields["batch"]): span.fields["version"]
            for span in self.spans("forward")
        }
        terms = self.committed()

        def version(batch: int, layer: int) -> int:
            term = terms[batch // micro_batches]
            stage = sum(layer >= cut for cut in self.partitions[term]["cuts"])
            return int(used[term, stage, batch])

        return version

    def check_schedules(self) -> None:
        """Every forward and backward of every term follows its stage's schedule."""
        progress: dict[tuple[int, int], list[int]] = {}  # start, forward, backward of a term's stage
        for record in self.records:
            if not isinstance(record, Span) or record.name not in ("forward", "backward"):
                continue
            term, stage, batch = (record.fields[name] for name in ("term", "stage", "batch"))
            window = self.partitions[term]["windows"][stage]
            at = progress.setdefault((term, stage), [batch, batch - 1, batch - 1])
            start, forward, backward = at
            if record.name == "forward":
                if forward == backward:
                    start = at[0] = batch  # nothing in flight: a new range may begin
                assert forward_ready(batch, forward=forward, backward=backward, window=window, start=start)
                at[1] = batch
            else:
                draining = forward < batch + window - 1  # then no forward may run until all backwards are done
                assert backward_ready(batch, forward=forward, backward=backward, window=window, draining=draining)
                at[2] = batch


def plain_sgd(net: nn.Module, data: Dataset, batches: int, batch: int, seed: int = 0) -> nn.Module:
    """Ordinary training on the same batches."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    return plain_loop(net, optimizer, data, MicroBatches(len(data.train), batch, seed=seed), batches)


def plain_loop(
    net: nn.Module, optimizer: torch.optim.Optimizer, data: Dataset, feed: MicroBatches, batches: int
) -> nn.Module:
    """Train the network itself."""
    net.train()
    for number in range(batches):
        inputs, targets = data.train.batch(feed.sample_indices(number))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return net


def delayed_sgd(
    net: nn.Module,
    data: Dataset,
    batches: int,
    batch: int,
    version: Versions,
    average: Callable[[int, int], int] = lambda version, layer: 1,
    seed: int = 0,
    layer_of: Mapping[str, int] | None = None,
    predict: bool = True,
    micro_batches: int = 1,
) -> nn.Module:
    """Delayed gradients: batch t is computed with some older version of each layer, and applied to the newest.

    `average(v, layer)` is how many of the newest versions are averaged into version v. With `predict` the older version
    is extrapolated along its momentum by as many steps as it is old. With `micro_batches` in a batch, `version` is
    asked for each of them, and their gradients are added up.
    """
    net, feed = copy.deepcopy(net).train(), MicroBatches(len(data.train), batch, micro_batches, seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    layers = trace_layers(net, tuple(data.shape)).layers if layer_of is None else ()
    layer_of = layer_of or {name: number for number, layer in enumerate(layers) for name in layer.parameters}
    weights = dict(net.named_parameters())
    history: list[dict[str, Tensor]] = [{name: weight.detach().clone() for name, weight in weights.items()}]
    headings: list[dict[str, Tensor]] = [{}]

    def weights_used(number: int, name: str) -> Tensor:
        used = version(number, layer_of[name])
        old, lag = history[used][name], number // micro_batches - used
        return old - float(lag) * headings[used][name] if predict and lag and headings[used] else old

    def gradients_of(number: int) -> list[Tensor]:
        inputs, targets = data.train.batch(feed.sample_indices(number))
        _load(weights, {name: weights_used(number, name) for name in weights})
        loss = nn.functional.cross_entropy(net(inputs), targets)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        return [gradient if micro_batches == 1 else gradient * feed.batch_fraction(number) for gradient in gradients]

    for number in range(batches):
        gradients = gradients_of(number * micro_batches)
        for micro_batch in range(number * micro_batches + 1, (number + 1) * micro_batches):
            gradients = [sum(pair[1:], pair[0]) for pair in zip(gradients, gradients_of(micro_batch), strict=True)]
        _load(weights, history[-1])
        for weight, gradient in zip(weights.values(), gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        newest = {name: weight.detach().clone() for name, weight in weights.items()}
        history.append(newest)
        headings.append({name: 0.05 * optimizer.state[weight]["momentum_buffer"] for name, weight in weights.items()})
        for name in weights:
            count = average(number + 1, layer_of[name])
            if count > 1:
                newest[name] = torch.stack([old[name] for old in history[-count:]]).mean(0)
    _load(weights, history[-1])
    return net


def _load(weights: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    for name, weight in weights.items():
        weight.data = values[name].clone()


def assert_same_weights(actual: nn.Module | None, reference: nn.Module) -> None:
    """Equal bit for bit, buffers included."""
    assert actual is not None
    for name, tensor in reference.state_dict().items():
        assert torch.equal(tensor, actual.state_dict()[name]), name
