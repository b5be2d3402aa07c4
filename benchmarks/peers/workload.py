"""What everyone computes: each client takes one SGD step on its batch, and their models are averaged.

Runs in every peer's environment, so it knows torch and nothing else. The weights to begin with and the clients' data
come from a file that Potluck wrote, so that all sides begin from the same numbers; the networks are spelled out again
and `load_state_dict` is strict, so that a network that is not ours is refused.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = ["NETWORKS", "Client", "Workload", "gaps", "load", "moved", "now", "pace", "save", "say", "step"]

Client = tuple[Tensor, Tensor]
State = dict[str, Tensor]


def mlp() -> nn.Module:
    """One hidden layer of 32: 25 k parameters."""
    return _row(flatten=nn.Flatten(), linear1=nn.Linear(784, 32), linear1_relu=nn.ReLU(), classifier=nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Two convolutions and a hidden layer of 128: 1.2 M parameters."""
    return _row(
        conv1=nn.Conv2d(1, 32, 3),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 3),
        relu2=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        dropout1=nn.Dropout(0.25),
        flatten=nn.Flatten(),
        hidden=nn.Linear(9216, 128),
        relu3=nn.ReLU(),
        dropout2=nn.Dropout(0.5),
        classifier=nn.Linear(128, 10),
    )


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn}


@dataclass(frozen=True)
class Workload:
    """A network with its first weights, and what the clients hold."""

    network: str
    lr: float
    state: State
    clients: Sequence[Client]

    def model(self) -> nn.Module:
        model = NETWORKS[self.network]()
        model.load_state_dict(self.state)
        return model.train()


def save(workload: Workload, path: Path) -> None:
    inputs, targets = zip(*workload.clients, strict=True)
    torch.save(
        {
            "network": workload.network,
            "lr": workload.lr,
            "state": workload.state,
            "inputs": torch.stack(inputs),
            "targets": torch.stack(targets),
        },
        path,
    )


def load(path: Path | str) -> Workload:
    """Numbers only: nothing in the file is executed."""
    kept = torch.load(path, weights_only=True)
    clients = [(inputs, targets) for inputs, targets in zip(kept["inputs"], kept["targets"], strict=True)]
    return Workload(kept["network"], kept["lr"], kept["state"], clients)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, client: Client) -> None:
    """The work of one client."""
    inputs, targets = client
    optimizer.zero_grad()
    cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def moved(state: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """How far training has carried the weights; tells whether two sides have computed the same."""
    return float(sum((state[name].double() - value.double()).abs().sum() for name, value in start.items()))


def pace(marks: Sequence[float], clients: int) -> float:
    """Clients per second from the ends of the rounds; the first round warms up and does not count."""
    return clients * (len(marks) - 1) / (marks[-1] - marks[0])


def gaps(marks: Sequence[float]) -> list[float]:
    """How long each round but the first took."""
    return [later - earlier for earlier, later in itertools.pairwise(marks)]


def say(name: str, packages: Sequence[str], figures: Mapping[str, float]) -> None:
    """The one line that a peer's script prints."""
    versions = {"python": sys.version.split()[0], **{package: metadata.version(package) for package in packages}}
    print(json.dumps({"name": name, "versions": versions, "figures": dict(figures)}), flush=True)


def now() -> float:
    return time.perf_counter()


def _row(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))
