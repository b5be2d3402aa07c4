"""A model and a task of a user's own, for jobs that name them as `package.module:name`.

The samples are plain arithmetic, so they do not depend on a random generator or on a library's exponential function.
"""

from __future__ import annotations

import torch
from torch import nn

import potluck
from potluck.data import from_tensors
from potluck.model.zoo.network_blocks import Residual

__all__ = ["adapted_net", "four_blocks", "make_task", "residual_conv", "small_conv"]

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


def residual_conv() -> nn.Module:
    """A stem, a residual block and one linear layer, for pictures of 1x6x6."""
    block = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), Residual(block, after=nn.ReLU()), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def four_blocks() -> nn.Module:
    """Linear layers in four blocks, of which the third is by far the largest one, for pictures of 1x6x6."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 8), nn.ReLU()),
        nn.Sequential(nn.Linear(8, CLASSES)),
    )


def adapted_net() -> nn.Module:
    """Frozen linear layers with LoRA adapters, named as peft names them, for pictures of 1x6x6."""
    return nn.Sequential(nn.Flatten(), _Adapted(SIDE * SIDE, 12), nn.ReLU(), _Adapted(12, CLASSES))


class _Adapted(nn.Module):
    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.Linear(inputs, rank, bias=False)
        self.lora_B = nn.Linear(rank, outputs, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base_layer(inputs) + 2.0 * self.lora_B(self.lora_A(inputs))  # type: ignore[no-any-return]


def make_task() -> potluck.Task:
    """Bright bars, one column for each class, on a pattern that differs from sample to sample."""
    return potluck.Task(model=small_conv, data=from_tensors(*_samples(96, 1), *_samples(32, 5)), name="bars")


def _samples(count: int, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(count) % CLASSES
    x = ((torch.arange(count * SIDE * SIDE) * 37 + offset) % 101).reshape(count, 1, SIDE, SIDE) / 128
    x[torch.arange(count), 0, :, y + 1] += 0.5
    return x, y
