"""What each layer costs on a device: time forward and backward per sample, bytes to pull and to push."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["DeviceCosts"]


@dataclass(frozen=True)
class DeviceCosts:
    """The costs of a chain of layers on a device that computes `flops` FLOP/s."""

    forward_flop: Sequence[float]
    backward_flop: Sequence[float]
    pull_bytes: Sequence[int]
    push_bytes: Sequence[int]
    flops: float = 1.0

    @property
    def layer_count(self) -> int:
        return len(self.forward_flop)

    def with_speed(self, flops: float) -> DeviceCosts:
        """The same chain on a device of this speed."""
        return DeviceCosts(self.forward_flop, self.backward_flop, self.pull_bytes, self.push_bytes, flops)

    def forward_s(self, layer: int, samples: int) -> float:
        return self.forward_flop[layer] * samples / self.flops

    def backward_s(self, layer: int, samples: int) -> float:
        return self.backward_flop[layer] * samples / self.flops

    def step_s(self, samples: int) -> float:
        """Seconds of one training step on so many samples."""
        return self._flop_per_sample * samples / self.flops

    @cached_property
    def _flop_per_sample(self) -> float:
        return sum(self.forward_flop) + sum(self.backward_flop)
