"""What a device remembers between rounds about what it did not send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["AccumulatedVector", "CodecState"]


class AccumulatedVector(NamedTuple):
    """A segment with what was held back of it before; nothing is remembered until it is kept."""

    total: Tensor
    velocity: Tensor | None = None


@dataclass
class CodecState:
    """Vectors are as long as the furthest segment seen and zero where nothing was; averages are by segment start."""

    residual: Tensor | None = None
    velocity: Tensor | None = None
    averages: dict[int, float] = field(default_factory=dict)
    compressed: int = 0
    whole: int = 0

    @property
    def compressed_fraction(self) -> float:
        """Compressed against all: the share of what was sent that was compressed."""
        return self.compressed / max(1, self.compressed + self.whole)

    def count_sent(self, compressed: bool) -> None:
        self.compressed += compressed
        self.whole += not compressed

    def update_average(self, start: int, value: float, smoothing: float) -> float:
        """The running average for the segment that starts here, with a new value in it."""
        before = self.averages.get(start, value)
        self.averages[start] = before + smoothing * (value - before)
        return self.averages[start]

    def add_residual(self, vector: Tensor, at: slice, momentum: float) -> AccumulatedVector:
        """The segment with its momentum and what is left from before."""
        velocity = None
        if momentum:
            self.velocity = _extend_to(self.velocity, vector, at)
            vector = velocity = vector.add(self.velocity[at], alpha=momentum)
        self.residual = _extend_to(self.residual, vector, at)
        return AccumulatedVector(self.residual[at] + vector, velocity)

    def store_residual(self, carried: AccumulatedVector, at: slice, places: Tensor | None, sent: Tensor) -> None:
        """Remember what was not sent; `places` were (None: all). What was sent has no momentum left to give."""
        assert self.residual is not None, "nothing was carried"
        if carried.velocity is not None and self.velocity is not None:
            self.velocity[at] = carried.velocity
            if places is not None:
                self.velocity[at][places] = 0
        if places is None:
            torch.sub(carried.total, sent, out=self.residual[at])
        else:
            left = carried.total[places] - sent
            self.residual[at] = carried.total
            self.residual[at][places] = left

    def return_to_residual(self, sent: Tensor, at: slice) -> None:
        """What was sent did not count after all."""
        self.residual = _extend_to(self.residual, sent, at)
        self.residual[at] += sent

    def to_tensors(self) -> dict[str, Tensor]:
        """All of it as tensors by name."""
        found = {
            "counts": torch.tensor([self.compressed, self.whole], dtype=torch.int64),
            "average_starts": torch.tensor(list(self.averages), dtype=torch.int64),
            "average_values": torch.tensor(list(self.averages.values()), dtype=torch.float64),
        }
        vectors = {"residual": self.residual, "velocity": self.velocity}
        return {**found, **{name: vector.clone() for name, vector in vectors.items() if vector is not None}}

    @staticmethod
    def from_tensors(state: Mapping[str, Tensor]) -> CodecState:
        """The reverse of `state`."""
        compressed, whole = state["counts"].tolist()
        averages = zip(state["average_starts"].tolist(), state["average_values"].tolist(), strict=True)
        residual, velocity = (state[name].clone() if name in state else None for name in ("residual", "velocity"))
        return CodecState(residual, velocity, dict(averages), compressed, whole)


def _extend_to(held: Tensor | None, like: Tensor, at: slice) -> Tensor:
    """The vector, at least as long as the segment reaches."""
    stop = len(like) if at.stop is None else at.stop
    if held is None:
        return torch.zeros(stop, dtype=like.dtype)
    return held if len(held) >= stop else torch.cat([held, held.new_zeros(stop - len(held))])
