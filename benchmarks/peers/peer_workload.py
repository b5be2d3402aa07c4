"""The workload of all sides: each client takes one SGD step on its batch, and the models are averaged.

This module runs in every peer's environment and imports nothing but torch. Initial weights and the clients' data come
from a file that Potluck wrote, so that all sides start from the same values. The networks are defined once more;
`load_state_dict` is strict, so a network that differs from Potluck's is refused.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

__all__ = [
    "NETWORKS",
    "Client",
    "Workload",
    "clients_per_second",
    "load_workload",
    "print_answer",
    "round_durations",
    "save_workload",
    "train_step",
    "weight_change",
]

Client = tuple[Tensor, Tensor]
State = dict[str, Tensor]


def mlp() -> nn.Module:
    """One hidden layer of 32: 25 k parameters."""
    return _named_sequential(
        flatten=nn.Flatten(), linear1=nn.Linear(784, 32), linear1_relu=nn.ReLU(), classifier=nn.Linear(32, 10)
    )


def cnn() -> nn.Module:
    """Two convolutions and a hidden layer of 128: 1.2 M parameters."""
    return _named_sequential(
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
    """A network with its initial weights, and the data of the clients."""

    network: str
    lr: float
    state: State
    clients: Sequence[Client]

    def model(self) -> nn.Module:
        model = NETWORKS[self.network]()
        model.load_state_dict(self.state)
        return model.train()


def save_workload(workload: Workload, path: Path) -> None:
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


def load_workload(path: Path | str) -> Workload:
    """Read a workload; only tensors are loaded, nothing in the file is executed."""
    content = torch.load(path, weights_only=True)
    clients = [(inputs, targets) for inputs, targets in zip(content["inputs"], content["targets"], strict=True)]
    return Workload(content["network"], content["lr"], content["state"], clients)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, client: Client) -> None:
    """One SGD step, the work of one client in a round."""
    inputs, targets = client
    optimizer.zero_grad()
    cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def weight_change(state: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> float:
    """The sum of absolute changes of the weights, which shows whether two sides computed the same."""
    return float(sum((state[name].double() - value.double()).abs().sum() for name, value in start.items()))


def clients_per_second(marks: Sequence[float], clients: int) -> float:
    """From the ends of the rounds; the first one is warm-up and does not count."""
    return clients * (len(marks) - 1) / (marks[-1] - marks[0])


def round_durations(marks: Sequence[float]) -> list[float]:
    """Seconds of each round but the first."""
    return [later - earlier for earlier, later in itertools.pairwise(marks)]


def print_answer(name: str, packages: Sequence[str], figures: Mapping[str, float]) -> None:
    """Print the line that `run_side` reads."""
    versions = {"python": sys.version.split()[0], **{package: metadata.version(package) for package in packages}}
    print(json.dumps({"name": name, "versions": versions, "figures": dict(figures)}), flush=True)


def _named_sequential(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(layers))
