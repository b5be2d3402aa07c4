"""How many updates become one: sums that take one update at a time and never hold them all.

Sums are kept in double precision: with whole numbers of samples as weights, products are exact and hardly any sum
depends on its order. One update alone comes back bit for bit, whatever it weighs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from potluck.model.state import Layout
from potluck.settings import Part

__all__ = ["Mean", "Merge", "Samples", "Sum"]


class Merge(Part, frozen=True, kw_only=True):
    """What an update weighs."""

    def weight(self, samples: int, staleness: int) -> float:
        raise NotImplementedError

    def begin(self, layout: Layout) -> Sum:
        """A sum with nothing in it yet."""
        return Sum(layout)


class Samples(Merge, frozen=True, kw_only=True, tag="samples"):
    """By the number of samples behind it (federated averaging)."""

    def weight(self, samples: int, staleness: int) -> float:
        return float(samples)


class Mean(Merge, frozen=True, kw_only=True, tag="mean"):
    """All alike."""

    def weight(self, samples: int, staleness: int) -> float:
        return 1.0


class Stale(Merge, frozen=True, kw_only=True, tag="staleness"):
    """Less the older the model it started from: (1 + staleness)^-power, as in FedBuff."""

    power: float = 0.5

    def weight(self, samples: int, staleness: int) -> float:
        return float((1 + staleness) ** -self.power)


class Sum:
    """A weighted sum of updates on the way to their mean."""

    def __init__(self, layout: Layout) -> None:
        self._dtype = layout.dtype
        self._params = torch.zeros(layout.param_bounds[-1], dtype=torch.float64)
        self._buffers = torch.zeros(layout.buffer_bounds[-1], dtype=torch.float64)
        self._weight = 0.0
        self._only: tuple[Tensor, Tensor] | None = None  # one update alone is its own mean, to the bit

    def add(self, params: Tensor, buffers: Tensor, weight: float) -> None:
        self._only = (params, buffers) if self._weight == 0 else None
        self._params.add_(params, alpha=weight)
        if len(buffers):
            self._buffers.add_(buffers, alpha=weight)
        self._weight += weight

    def mean(self) -> tuple[Tensor, Tensor]:
        """The direction of the parameters and the change of the buffers."""
        assert self._weight > 0, "nothing was added"
        if self._only is not None:
            return self._only
        params, buffers = self._params.div_(self._weight), self._buffers.div_(self._weight)
        return params.to(self._dtype), buffers.to(self._dtype)
