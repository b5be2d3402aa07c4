"""Error feedback: what a device keeps between rounds of the updates it did not send."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["AccumulatedVector", "CodecState"]

_FACTOR = "factor."  # begins the names of factors in a checkpoint


class AccumulatedVector(NamedTuple):
    """A segment with its residual added; the state does not change until `store_residual`."""

    total: Tensor
    velocity: Tensor | None = None


@dataclass
class CodecState:
    """Vectors reach as far as the last segment encoded and are zero elsewhere; averages are keyed by segment start."""

    residual: Tensor | None = None
    velocity: Tensor | None = None
    averages: dict[int, float] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)  # in which each segment was sent, by its start
    compressed: int = 0
    whole: int = 0
    matrices: tuple[tuple[int, int, int], ...] = ()  # start, rows and columns of each weight matrix, for low rank
    factors: dict[int, Tensor] = field(default_factory=dict)  # of each matrix, by its start: where to begin next time
    keeps_residual: bool = True  # False where the vectors themselves contain what was not sent before

    @property
    def compressed_fraction(self) -> float:
        """The fraction of sent segments that were compressed."""
        return self.compressed / max(1, self.compressed + self.whole)

    def count_sent(self, start: int, compressed: bool) -> None:
        """The segment that begins at `start` was sent."""
        self.turns[start] = self.turns.get(start, 0) + 1
        self.compressed += compressed
        self.whole += not compressed

    def update_average(self, start: int, value: float, smoothing: float) -> float:
        """Add a value to the running average of the segment that begins at `start`, and return the average."""
        before = self.averages.get(start, value)
        self.averages[start] = before + smoothing * (value - before)
        return self.averages[start]

    def add_residual(self, vector: Tensor, entries: slice, momentum: float) -> AccumulatedVector:
        """The segment with its momentum and its residual added."""
        velocity = None
        if momentum:
            self.velocity = _extend_to(self.velocity, vector, entries)
            vector = velocity = vector.add(self.velocity[entries], alpha=momentum)
        self.residual = _extend_to(self.residual, vector, entries)
        return AccumulatedVector(self.residual[entries] + vector, velocity)

    def store_residual(
        self, accumulated: AccumulatedVector, entries: slice, indices: Tensor | None, sent: Tensor
    ) -> None:
        """Keep what was not sent as the residual; `indices` were sent (None: all), and their momentum is reset."""
        assert self.residual is not None, "add_residual comes first"
        if accumulated.velocity is not None and self.velocity is not None:
            self.velocity[entries] = accumulated.velocity
            if indices is not None:
                self.velocity[entries][indices] = 0
        if indices is None:
            torch.sub(accumulated.total, sent, out=self.residual[entries])
        else:
            left = accumulated.total[indices] - sent
            self.residual[entries] = accumulated.total
            self.residual[entries][indices] = left

    def return_to_residual(self, sent: Tensor, entries: slice) -> None:
        """Put back what was sent in vain."""
        self.residual = _extend_to(self.residual, sent, entries)
        self.residual[entries] += sent

    def to_tensors(self) -> dict[str, Tensor]:
        """The state as tensors by name, for a checkpoint."""
        tensors = {
            "counts": torch.tensor([self.compressed, self.whole], dtype=torch.int64),
            "average_starts": torch.tensor(list(self.averages), dtype=torch.int64),
            "average_values": torch.tensor(list(self.averages.values()), dtype=torch.float64),
            "turns": torch.tensor([*self.turns, *self.turns.values()], dtype=torch.int64),
            "matrices": torch.tensor(self.matrices, dtype=torch.int64),
        }
        vectors = {"residual": self.residual, "velocity": self.velocity}
        factors = {f"{_FACTOR}{start}": factor.clone() for start, factor in self.factors.items()}
        named = {name: vector.clone() for name, vector in vectors.items() if vector is not None}
        return {**tensors, **named, **factors}

    @staticmethod
    def from_tensors(state: Mapping[str, Tensor]) -> CodecState:
        """The reverse of `to_tensors`."""
        compressed, whole = state["counts"].tolist()
        averages = zip(state["average_starts"].tolist(), state["average_values"].tolist(), strict=True)
        residual, velocity = (state[name].clone() if name in state else None for name in ("residual", "velocity"))
        starts, turns = state["turns"].view(2, -1).tolist()
        restored = CodecState(
            residual, velocity, dict(averages), dict(zip(starts, turns, strict=True)), compressed, whole
        )
        restored.matrices = tuple((start, rows, columns) for start, rows, columns in state["matrices"].tolist())
        restored.factors = {
            int(name.removeprefix(_FACTOR)): value.clone() for name, value in state.items() if name.startswith(_FACTOR)
        }
        return restored


def _extend_to(vector: Tensor | None, like: Tensor, entries: slice) -> Tensor:
    """The vector, extended with zeros to the end of the segment."""
    stop = len(like) if entries.stop is None else entries.stop
    if vector is None:
        return torch.zeros(stop, dtype=like.dtype)
    return vector if len(vector) >= stop else torch.cat([vector, vector.new_zeros(stop - len(vector))])
