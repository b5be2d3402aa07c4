"""Networks to narrow: one of each family of the zoo, and hand-written ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from potluck.model import zoo
from potluck.model.submodels.slimmable_model import SlimmableModel, trace_slimmable

__all__ = ["LARGE", "NETWORKS", "build", "traced"]

Shape = tuple[int, ...]


class ByHand(nn.Module):
    """Functional calls instead of modules, and a hard-coded size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc1 = nn.Linear(8 * 4, 20)
        self.fc2 = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.sigmoid(self.conv2(x)), 2)
        x = x.view(-1, 8 * 2 * 2)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class Grouped(nn.Module):
    """ResNeXt-like: groups of four channels, group norm, a depthwise convolution with two outputs for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(3, 24, 1)
        self.middle = nn.Conv2d(24, 24, 3, padding=1, groups=6)
        self.norm = nn.GroupNorm(6, 24)
        self.twice = nn.Conv2d(24, 48, 3, padding=1, groups=24)
        self.expand = nn.Conv2d(48, 12, 1, bias=False)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.middle(self.reduce(x))))
        out: Tensor = self.head(self.expand(self.twice(x)).mean((2, 3)))
        return out


class Gated(nn.Module):
    """Squeeze and excitation, a concatenation that is flattened, a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 10, 3, padding=1)
        self.again = nn.Conv2d(10, 10, 3, padding=1)
        self.squeeze = nn.Conv2d(10, 4, 1)
        self.excite = nn.Conv2d(4, 10, 1)
        self.side = nn.Conv2d(10, 6, 3, padding=1)
        self.slope = nn.PReLU(16)
        self.head = nn.Linear(16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(F.relu(self.again(F.relu(self.first(x)))))
        x = x * torch.sigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        both = self.slope(torch.cat([x, self.side(x)], dim=1))
        out: Tensor = self.head(torch.flatten(F.avg_pool2d(both, 4), 1))
        return out


def _zoo(name: str, shape: Shape, **options: Any) -> tuple[Callable[[], nn.Module], Shape]:
    return lambda: zoo.build_model(name, **options), shape


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "vgg9": _zoo("vgg9", (3, 8, 8), side=8),
    "vgg11-bn-cifar": _zoo("vgg11-bn-cifar", (3, 32, 32)),
    "resnet20": _zoo("resnet20", (3, 16, 16)),
    "resnet50": _zoo("resnet50", (3, 64, 64), classes=10),
    "mobilenet-v2-cifar": _zoo("mobilenet-v2-cifar", (3, 16, 16), dropout=0, width=0.5),
    "densenet40": _zoo("densenet40", (3, 8, 8), growth=4),
    "densenet121": _zoo("densenet121", (3, 64, 64), growth=4, classes=10),
    "alexnet-cifar": _zoo("alexnet-cifar", (3, 32, 32)),
    "googlenet": _zoo("googlenet", (3, 64, 64), classes=10, dropout=0),
    "ds-cnn": _zoo("ds-cnn", (1, 49, 10)),
    "lenet": _zoo("lenet", (1, 12, 12), side=12),
    "cnn": _zoo("cnn", (1, 12, 12), side=12, dropout=(0, 0)),
    "mlp": _zoo("mlp", (1, 8, 8), side=8, hidden=(20, 12)),
    "by hand": (ByHand, (3, 16, 16)),
    "grouped": (Grouped, (3, 6, 6)),
    "gated": (Gated, (3, 16, 16)),
}
LARGE = ("vgg11-bn-cifar", "resnet50", "densenet121", "googlenet")


def build(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Shape]:
    """A network with weights of a fixed seed, and its sample's shape."""
    make, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return make().to(dtype), shape


@functools.cache
def traced(name: str, dtype: torch.dtype = torch.float32) -> tuple[SlimmableModel, Shape]:
    """The traced network, whose module must not be changed, and its sample shape."""
    module, shape = build(name, dtype)
    return trace_slimmable(module, shape, dtype=dtype), shape
