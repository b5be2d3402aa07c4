"""A small U-Net, and generated pictures of discs and squares whose pixels it classifies."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from potluck.data import Dataset, from_tensors

__all__ = ["ShapeUnet", "generate_shapes"]

SIDE = 32
CLASSES = 3  # background, disc, square
_NOISE = 0.5


class ShapeUnet(nn.Module):
    """Two steps down and two up; each step up is joined with the features of its resolution on the way down."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = _convolve_twice(1, width)
        self.second = _convolve_twice(width, 2 * width)
        self.lowest = _convolve_twice(2 * width, 4 * width)
        self.rise = _convolve_twice(6 * width, 2 * width)
        self.last = _convolve_twice(3 * width, width)
        self.pool = nn.MaxPool2d(2)
        self.enlarge = nn.Upsample(scale_factor=2)
        self.scores = nn.Conv2d(width, CLASSES, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        first = self.first(pictures)
        second = self.second(self.pool(first))
        lowest = self.lowest(self.pool(second))
        risen = self.rise(torch.cat([second, self.enlarge(lowest)], dim=1))
        return self.scores(self.last(torch.cat([first, self.enlarge(risen)], dim=1)))  # type: ignore[no-any-return]


def _convolve_twice(inputs: int, filters: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(),
        nn.Conv2d(filters, filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU(),
    )  # fmt: skip


def generate_shapes(train: int, test: int, seed: int = 0) -> Dataset:
    """Noisy pictures of two discs and two squares, which may hide one another; the targets are classes of pixels."""
    rng = np.random.default_rng(seed)
    pictures, classes = _draw_shapes(rng, train + test)
    return from_tensors(pictures[:train], classes[:train], pictures[train:], classes[train:])


def _draw_shapes(rng: np.random.Generator, count: int) -> tuple[Tensor, Tensor]:
    rows, columns = np.mgrid[:SIDE, :SIDE]
    classes = np.zeros((count, SIDE, SIDE), np.int64)
    light = np.zeros((count, SIDE, SIDE), np.float32)
    for kind in (1, 2, 1, 2):
        centre = rng.uniform(4, SIDE - 4, (2, count, 1, 1))
        radius = rng.uniform(3, 7, (count, 1, 1))
        down, across = np.abs(rows - centre[0]), np.abs(columns - centre[1])
        inside = np.hypot(down, across) < radius if kind == 1 else np.maximum(down, across) < radius
        classes[inside] = kind
        light = np.where(inside, rng.uniform(0.5, 1.5, (count, 1, 1)), light)
    noisy = light + _NOISE * rng.standard_normal(light.shape)
    return torch.from_numpy(noisy[:, None].astype(np.float32)), torch.from_numpy(classes)
