"""What each layer costs on a device: time forward and backward per sample, bytes to pull and to push."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from potluck.planning.layer_times import PassSeconds

__all__ = ["DeviceCosts"]


@dataclass(frozen=True)
class DeviceCosts:
    """The costs of a chain of layers on a device that computes `flops` FLOP/s."""

    forward_flop: Sequence[float]
    backward_flop: Sequence[float]
    pull_bytes: Sequence[int]
    push_bytes: Sequence[int]
    flops: float = 1.0
    measured: Mapping[str, DeviceCosts] = field(default_factory=dict)  # of devices with a profile, by name
    once_flop: float = 0.0  # before the device's first turn

    @property
    def layer_count(self) -> int:
        return len(self.forward_flop)

    def on_device(self, device: str) -> DeviceCosts:
        """The same chain with the device's measured work per layer, where it has a profile."""
        return self.measured.get(device, self)

    def scaled_like(self, whole: DeviceCosts, measured: DeviceCosts) -> DeviceCosts:
        """These costs of a sub-model, each layer scaled as a profile scales it in the whole model."""
        if measured is whole:
            return self
        forward = _scale_layers(self.forward_flop, whole.forward_flop, measured.forward_flop)
        backward = _scale_layers(self.backward_flop, whole.backward_flop, measured.backward_flop)
        return replace(self, forward_flop=forward, backward_flop=backward)

    def with_speed(self, flops: float) -> DeviceCosts:
        """The same chain on a device of this speed."""
        return replace(self, flops=flops, measured={})

    def forward_s(self, layer: int, samples: int) -> float:
        return self.forward_flop[layer] * samples / self.flops

    def backward_s(self, layer: int, samples: int) -> float:
        return self.backward_flop[layer] * samples / self.flops

    def step_s(self, samples: int) -> float:
        """Seconds of one training step on so many samples."""
        return self._flop_per_sample * samples / self.flops

    def pass_seconds(self, samples: int) -> PassSeconds:
        """Nominal seconds of each layer for so many samples."""
        layers = range(self.layer_count)
        return PassSeconds(
            [self.forward_s(layer, samples) for layer in layers], [self.backward_s(layer, samples) for layer in layers]
        )

    @property
    def once_s(self) -> float:
        """Seconds that a device spends once, before its first turn."""
        return self.once_flop / self.flops

    @cached_property
    def _flop_per_sample(self) -> float:
        return sum(self.forward_flop) + sum(self.backward_flop)


def _scale_layers(own: Sequence[float], whole: Sequence[float], measured: Sequence[float]) -> list[float]:
    """A layer without MACs takes its measured time whatever the sub-model."""
    return [
        flop * seconds / nominal if nominal else seconds
        for flop, nominal, seconds in zip(own, whole, measured, strict=True)
    ]
