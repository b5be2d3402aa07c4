"""A model and a task of a user's own, for jobs that name them as `package.module:name`.

The samples are plain arithmetic, so they do not depend on a random generator or on a library's exponential function.
"""

from __future__ import annotations

import torch
from torch import nn

import potluck
from potluck.data import from_tensors

__all__ = ["four_blocks", "make_task", "small_conv"]

CLASSES = 4
SIDE = 6


def small_conv(classes: int = CLASSES) -> nn.Module:
    """Three convolutions in two blocks, with batch norm, and one linear layer, for pictures of 1x6x6."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 1), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24, classes),
    )


def four_blocks() -> nn.Module:
    """Linear layers in four blocks, of which the third is by far the largest one, for pictures of 1x6x6."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, CLASSES)),
    )


def make_task() -> potluck.Task:
    """Bright bars, one column for each class, on a pattern that differs from sample to sample."""
    return potluck.Task(model=small_conv, data=from_tensors(*_samples(96, 1), *_samples(32, 5)), name="bars")


def _samples(count: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(count) % CLASSES
    x = ((torch.arange(count * SIDE * SIDE) * 37 + offset) % 101).reshape(count, 1, SIDE, SIDE) / 128
    x[torch.arange(count), 0, :, y + 1] += 0.5
    return x, y
