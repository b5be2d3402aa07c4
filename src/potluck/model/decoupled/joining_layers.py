"""Layers without weights that join or select channels, as modules that can be described in a file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

__all__ = ["AddTensors", "ConcatenateChannels", "MultiplyTensors", "SelectChannels", "SpatialMean"]


class AddTensors(nn.Module):
    """The sum of its inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(torch.add, inputs)


class MultiplyTensors(nn.Module):
    """The product of its inputs."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return reduce(torch.mul, inputs)


class ConcatenateChannels(nn.Module):
    """The channels of its inputs in a row."""

    def forward(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, dim=1)


class SelectChannels(nn.Module):
    """Some channels of its input."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.channels = list(channels)
        first = self.channels[0] if self.channels else 0
        self._adjacent = self.channels == list(range(first, first + len(self.channels)))

    def forward(self, inputs: Tensor) -> Tensor:
        if self._adjacent:
            return inputs.narrow(1, self.channels[0] if self.channels else 0, len(self.channels))
        return inputs[:, self.channels]


class SpatialMean(nn.Module):
    """The mean of each channel over its positions."""

    def __init__(self, keepdim: bool) -> None:
        super().__init__()
        self.keepdim = keepdim

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(dim=list(range(2, inputs.dim())), keepdim=self.keepdim)
