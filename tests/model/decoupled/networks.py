"""Small networks and samples shared by the tests of decoupled training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model.decoupled import Contribution, GroupedNetwork, GroupLoss, GroupSubmodel, decouple
from potluck.planning.groups import even_groups

__all__ = ["SHAPE", "Functional", "contribution", "fit", "samples", "small", "small_grouped", "trained", "wake"]

SHAPE = (2, 8, 8)


class Functional(nn.Module):
    """The same kind of network in tutorial style: functional calls, and a view to flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(2, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3)
        self.hidden = nn.Linear(12 * 9, 20)
        self.out = nn.Linear(20, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        logits: Tensor = self.out(F.relu(self.hidden(x)))
        return logits


def small(classes: int = 6, *, norm: bool = True, filters: int = 12, seed: int = 0) -> nn.Sequential:
    """Three convolutions and one hidden layer; widths are divisible by 2 and 3."""
    torch.manual_seed(seed)
    norms = [nn.BatchNorm2d(filters)] if norm else []
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, filters, 3, padding=1), *norms, nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(filters, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(filters * 4, 18), nn.ReLU(), nn.Linear(18, classes),
    )  # fmt: skip


def small_grouped(count: int = 3, depth: int = 1, **options: object) -> GroupedNetwork:
    return decouple(small(norm=False), SHAPE, even_groups(6, count), depth, **options)  # type: ignore[arg-type]


def samples(count: int = 60, classes: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noise around one image per class: easy, but not without training."""
    draws = torch.Generator().manual_seed(seed)
    pictures = torch.randn(classes, *SHAPE, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % classes
    return pictures[labels] + 0.7 * torch.randn(count, *SHAPE, generator=draws), labels


def fit(
    submodel: GroupSubmodel, loss: GroupLoss, batch: tuple[Tensor, Tensor], steps: int, lr: float, momentum: float = 0.9
) -> list[float]:
    """Plain SGD on one batch; returns the loss of each step."""
    parameters = [parameter for parameter in submodel.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    inputs, labels = batch
    losses = []
    submodel.train()
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss(submodel(inputs), labels)
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def trained(submodel: GroupSubmodel, steps: int = 40, lr: float = 0.05) -> list[float]:
    """Train a submodel on all samples, own and other weighted equally; returns the loss of each step."""
    loss = GroupLoss(submodel.own_classes, 6, dict.fromkeys(range(6), 10))
    return fit(submodel, loss, samples(), steps, lr)


def contribution(device: str, submodel: GroupSubmodel, count: int = 10) -> Contribution:
    return Contribution(device, submodel.state_dict(), dict.fromkeys(submodel.group_indices, count))


def wake(grouped: GroupedNetwork) -> None:
    """Mark every group as trained, so that all take part."""
    for group in range(len(grouped.spec.groups)):
        grouped.group_branch(group).readout.trained.fill_(1.0)
