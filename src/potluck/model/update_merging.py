"""Merges updates into a weighted mean, one at a time, without holding them all.

Sums are kept in double precision: with sample counts as weights, products are exact and hardly any sum
depends on its order. A single update comes back bit for bit, whatever its weight.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from potluck.model.model_state import WeightLayout
from potluck.settings import Part, doc

__all__ = ["FULL_LENGTH", "EquallyWeighted", "MergeRule", "SampleWeighted", "UpdateNorm", "UpdateSum"]


class UpdateNorm(NamedTuple):
    """Of the parameters and of the buffers of an update or a model: their norms, or factors to scale them by."""

    params: float
    buffers: float


FULL_LENGTH = UpdateNorm(1.0, 1.0)  # as factors


class MergeRule(Part, frozen=True, kw_only=True):
    """Weight of each update in the mean."""

    staleness_keys: ClassVar[tuple[str, ...]] = ()  # keys that have no effect unless updates are of older models

    def update_weight(self, samples: int, staleness: int) -> float:
        raise NotImplementedError

    def new_sum(self, layout: WeightLayout) -> UpdateSum:
        """An empty sum."""
        return UpdateSum(layout)


class SampleWeighted(MergeRule, frozen=True, kw_only=True, tag="samples"):
    """By the number of samples behind an update (federated averaging)."""

    def update_weight(self, samples: int, staleness: int) -> float:
        return float(samples)


class EquallyWeighted(MergeRule, frozen=True, kw_only=True, tag="mean"):
    """The same weight for every update."""

    def update_weight(self, samples: int, staleness: int) -> float:
        return 1.0


class StalenessWeighted(MergeRule, frozen=True, kw_only=True, tag="staleness"):
    """(1 + staleness)^−power: an update of an older model counts less, as in FedBuff."""

    staleness_keys: ClassVar[tuple[str, ...]] = ("power",)

    power: Annotated[float, doc("Exponent; 0 weights all updates equally.")] = 0.5

    def update_weight(self, samples: int, staleness: int) -> float:
        return float((1 + staleness) ** -self.power)


class UpdateSum:
    """A running weighted sum of updates, from which `mean` is taken."""

    def __init__(self, layout: WeightLayout, params: int | None = None, buffers: int | None = None) -> None:
        """Over all entries, or over this many parameters and buffers."""
        self._dtype = layout.dtype
        self._params = torch.zeros(layout.param_bounds[-1] if params is None else params, dtype=torch.float64)
        self._buffers = torch.zeros(layout.buffer_bounds[-1] if buffers is None else buffers, dtype=torch.float64)
        self._weight = 0.0
        self._weights: tuple[Tensor, Tensor] | None = None  # per entry, once an update of a sub-model was added
        self._only: tuple[Tensor, Tensor] | None = None  # a single update is its own mean, bit for bit

    def add(self, params: Tensor, buffers: Tensor, weight: float) -> None:
        self._only = (params, buffers) if self._weight == 0 else None
        self._params.add_(params, alpha=weight)
        if len(buffers):
            self._buffers.add_(buffers, alpha=weight)
        self._weight += weight
        for counts in self._weights or ():
            counts.add_(weight)

    def add_submodel(self, params: Tensor, buffers: Tensor, weight: float, entries: Tensor, kept: Tensor) -> None:
        """Add a sub-model's update: of these parameter `entries` and `kept` buffers only."""
        if self._weights is None:
            self._weights = torch.full_like(self._params, self._weight), torch.full_like(self._buffers, self._weight)
        self._only = None
        self._weight += weight
        for total, counts, indices, update in zip(
            (self._params, self._buffers), self._weights, (entries, kept), (params, buffers), strict=True
        ):
            total.index_add_(0, indices, update.to(torch.float64), alpha=weight)
            counts.index_add_(0, indices, torch.full_like(update, weight, dtype=torch.float64))

    def trained_mask(self) -> Tensor | None:
        """Which parameters at least one device trained; None if all were."""
        if self._weights is None:
            return None
        trained = self._weights[0] > 0
        return None if bool(trained.all()) else trained

    def mean(self) -> tuple[Tensor, Tensor]:
        """The mean update of the parameters and change of the buffers; each entry over the updates that trained it."""
        assert self._weight > 0, "nothing was added"
        if self._weights is not None:
            means = [
                torch.where(counts > 0, total / counts, 0.0)
                for total, counts in zip((self._params, self._buffers), self._weights, strict=True)
            ]
            return means[0].to(self._dtype), means[1].to(self._dtype)
        if self._only is not None:
            return self._only[0].to(self._dtype), self._only[1].to(self._dtype)
        params, buffers = self._params.div_(self._weight), self._buffers.div_(self._weight)
        return params.to(self._dtype), buffers.to(self._dtype)
