"""Federated averaging as one would write it without any framework: the yardstick for ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from potluck import seeds
from potluck.job import Job
from potluck.model.local_training import LocalSgd
from potluck.task import build_task

__all__ = ["Client", "clients_of", "run_bare_fedavg"]

Client = tuple[Tensor, Tensor]


def run_bare_fedavg(model: nn.Module, clients: Sequence[Client], lr: float) -> Iterator[None]:
    """Endless rounds; each ends with a `yield` and the averaged model in `model`."""
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
    """The model to begin with, the clients' data and the learning rate that the simulation of this job has."""
    task = build_task(job.task, None)
    dealt = job.split.assign_samples(
        task.data.train.labels, len(job.fleet.members), seeds.child_generator(job.seed, "split")
    )
    assert isinstance(job.rounds.local, LocalSgd)
    return task.build_module(job.seed), [task.data.train.batch(held) for held in dealt], job.rounds.local.lr
