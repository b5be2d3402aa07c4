"""What each layer of a chain costs in a pipeline: FLOP and bytes, for one sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

__all__ = ["PipelineCosts"]


@dataclass(frozen=True)
class PipelineCosts:
    """Costs per layer."""

    forward_flop: Sequence[float]
    backward_flop: Sequence[float]
    cut_bytes_per_sample: Sequence[float]  # after each layer, one way; infinite where no cut is allowed
    param_bytes: Sequence[int]
    buffer_bytes: Sequence[int]
    label_bytes: int = 8  # of a sample
    moments: int = 1  # vectors that the optimizer holds for each weight
    activation_bytes: Sequence[float] = ()  # of a sample, held between its forward and backward pass; empty: 0
    frozen_bytes: Sequence[int] = ()  # of weights that are held but never sent with a version; empty: 0

    measured: Mapping[str, PipelineCosts] = field(default_factory=dict)  # of devices with a profile, by name

    def on_device(self, device: str) -> PipelineCosts:
        """The same chain with the device's measured work per layer, where it has a profile."""
        return self.measured.get(device, self)

    @property
    def layer_count(self) -> int:
        return len(self.forward_flop)

    def stage_forward_flop(self, first: int, last: int, samples: int) -> float:
        """FLOP of the layers `first` to `last`."""
        return (self._forward_sums[last + 1] - self._forward_sums[first]) * samples

    def stage_backward_flop(self, first: int, last: int, samples: int) -> float:
        return (self._backward_sums[last + 1] - self._backward_sums[first]) * samples

    def stage_flop(self, first: int, last: int, samples: int) -> float:
        return self.stage_forward_flop(first, last, samples) + self.stage_backward_flop(first, last, samples)

    def cut_transfer_bytes(self, after: int, samples: int) -> int:
        """Bytes that are sent to the next stage if the chain is cut after a layer."""
        nbytes = self.cut_bytes_per_sample[after] * samples
        return 0 if math.isinf(nbytes) else int(nbytes)

    def state_bytes(self, first: int, last: int, moments: bool = True) -> int:
        """Bytes of one version of some layers."""
        params = sum(self.param_bytes[first : last + 1])
        return params * (1 + self.moments * moments) + sum(self.buffer_bytes[first : last + 1])

    def held_bytes(self, layer: int) -> int:
        """Bytes that a layer takes on the device that holds it."""
        return self.state_bytes(layer, layer) + (self.frozen_bytes[layer] if self.frozen_bytes else 0)

    def step_bytes(self, first: int, last: int) -> int:
        """Bytes of one step of some layers."""
        return self.state_bytes(first, last, moments=False)

    @cached_property
    def _forward_sums(self) -> list[float]:
        return list(accumulate(self.forward_flop, initial=0.0))

    @cached_property
    def _backward_sums(self) -> list[float]:
        return list(accumulate(self.backward_flop, initial=0.0))
