"""Small networks and samples shared by the tests of decoupled training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model.decoupled import Contribution, GroupedNetwork, GroupLoss, GroupSubmodel, decouple
from potluck.planning.groups import even_groups

__all__ = [
    "SHAPE",
    "Functional",
    "Joining",
    "contribution",
    "fit",
    "samples",
    "small",
    "small_grouped",
    "trained",
    "wake",
]

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


class Joining(nn.Module):
    """All ways in which channels meet: shortcuts, a concatenation, excitation, depthwise and grouped convolutions."""

    def __init__(self, classes: int = 6, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(2, 12, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)  # used several times, as many public networks do
        self.first, self.first_norm = nn.Conv2d(12, 18, 3, padding=1, bias=False), nn.BatchNorm2d(18)
        self.second = nn.Conv2d(18, 12, 3, padding=1)
        self.expand = nn.Conv2d(12, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 3, stride=2, padding=1, groups=24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.project, self.shortcut = nn.Conv2d(24, 12, 1), nn.Conv2d(12, 12, 1, stride=2)
        self.runs, self.runs_norm = nn.Conv2d(12, 24, 3, padding=1, groups=6), nn.GroupNorm(6, 24)
        self.out = nn.Linear(12 + 24, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.second(self.relu(self.first_norm(self.first(x)))) + x)
        y = F.silu(self.depthwise(self.relu(self.expand(x))))
        y = y * torch.sigmoid(self.excite(self.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        x = self.project(y) + self.shortcut(x)
        x = torch.cat([x, self.relu(self.runs_norm(self.runs(x)))], dim=1)
        logits: Tensor = self.out(x.mean((2, 3)))
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
