"""Clients per second of Potluck and of a bare PyTorch loop, measured one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import potluck
from benchmarks.simulation.simulation_workload import DEVICES, peers_job
from potluck import seeds
from potluck.job import Job
from potluck.model.local_training import LocalSgd
from potluck.task import build_task

__all__ = ["Client", "clients_of", "measure_throughput", "run_bare_fedavg"]

_WARM_UP_ROUNDS = 1


class _RoundEnd(NamedTuple):
    """Wall-clock time and CPU time of all threads at the end of a round."""

    wall_s: float
    cpu_s: float


def measure_throughput(model: str, rounds: int, repeat: int, seed: int) -> dict[str, float]:
    """Measure both sides; the order alternates with the repeat, so that neither always runs on a warm machine."""
    sides: dict[str, Callable[[str, int, int], list[_RoundEnd]]] = {"bare": _run_bare, "potluck": _run_potluck}
    order = sorted(sides, reverse=bool(repeat % 2))
    result: dict[str, float] = {}
    for side in order:
        marks = sides[side](model, _WARM_UP_ROUNDS + rounds, seed)
        first, last = marks[_WARM_UP_ROUNDS - 1], marks[-1]
        result[f"{side}_clients_per_s"] = DEVICES * rounds / (last.wall_s - first.wall_s)
        result[f"{side}_cpu_ms"] = 1e3 * (last.cpu_s - first.cpu_s) / (DEVICES * rounds)
    return result


def _round_end() -> _RoundEnd:
    return _RoundEnd(time.perf_counter(), time.process_time())


def _run_potluck(model: str, rounds: int, seed: int) -> list[_RoundEnd]:
    marks: list[_RoundEnd] = []
    result = potluck.simulate(peers_job(model, rounds, seed), watch=lambda store, now: marks.append(_round_end()))
    assert result.summary["updates"] == DEVICES * rounds, result.reason
    return marks


def _run_bare(model: str, rounds: int, seed: int) -> list[_RoundEnd]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_round_end() for _ in islice(run_bare_fedavg(*clients_of(peers_job(model, 1, seed))), rounds)]
    finally:
        torch.set_num_threads(threads)


Client = tuple[Tensor, Tensor]


def run_bare_fedavg(model: nn.Module, clients: Sequence[Client], lr: float) -> Iterator[None]:
    """Federated averaging without a framework: yields after each round, with the averaged model in `model`."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    current = {name: value.clone() for name, value in model.state_dict().items()}
    while True:
        mean = {name: torch.zeros_like(value) for name, value in current.items()}
        for inputs, targets in clients:
            model.load_state_dict(current)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for name, value in model.state_dict().items():
                mean[name].add_(value, alpha=1 / len(clients))
        current = mean
        model.load_state_dict(current)
        yield


def clients_of(job: Job) -> tuple[nn.Module, list[Client], float]:
    """The initial model, the clients' data and the learning rate of the simulation of this job."""
    task = build_task(job.task, None)
    shards = job.split.assign_samples(
        task.data.train.labels, len(job.fleet.members), seeds.child_generator(job.seed, "split")
    )
    assert isinstance(job.rounds.local, LocalSgd)
    return task.build_module(job.seed), [task.data.train.batch(shard) for shard in shards], job.rounds.local.lr
