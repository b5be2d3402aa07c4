"""Merge of updates of which each covers only some entries: the mean of every entry over those who trained it.

Sums are kept in double precision as in `model.merge`; an entry that a single update covers comes back bit for bit,
and one that nobody trained does not move, nor does the optimizer's memory of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from potluck.model.state import Layout
from potluck.model.submodels.selection import Half, Selection

__all__ = ["EntrySum", "untouched"]


class _Vector:
    """The weighted sum of one of the two vectors, and how much weight every entry has seen."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._sum = torch.zeros(size, dtype=torch.float64)
        self._weight = torch.zeros(size, dtype=torch.float64)
        self._times = torch.zeros(size, dtype=torch.int32)
        self._last = torch.zeros(size, dtype=dtype)

    def add(self, half: Half | None, update: Tensor, weight: float) -> None:
        index = slice(None) if half is None else half.index
        self._sum[index] += update.to(torch.float64) * weight
        self._weight[index] += weight
        self._times[index] += 1
        self._last[index] = update

    def mean(self) -> Tensor:
        shared = (self._sum / self._weight.clamp_min(torch.finfo(torch.float64).tiny)).to(self._dtype)
        return torch.where(self._times > 1, shared, self._last)

    @property
    def covered(self) -> Tensor:
        return self._times > 0


class EntrySum:
    """A sum of updates on index sets, on the way to their mean entry by entry."""

    def __init__(self, layout: Layout) -> None:
        self._params = _Vector(layout.param_bounds[-1], layout.dtype)
        self._buffers = _Vector(layout.buffer_bounds[-1], layout.dtype)

    def add(self, params: Tensor, buffers: Tensor, weight: float, selection: Selection | None = None) -> None:
        """Put one update in; without a selection it covers everything."""
        assert weight > 0, "an update without weight is no update"
        self._params.add(None if selection is None else selection.params, params, weight)
        if len(buffers):
            self._buffers.add(None if selection is None else selection.buffers, buffers, weight)

    def mean(self) -> tuple[Tensor, Tensor]:
        """The direction of the parameters and the change of the buffers; zero where nobody trained."""
        return self._params.mean(), self._buffers.mean()

    @property
    def covered(self) -> Tensor:
        """Which parameters somebody has trained."""
        return self._params.covered


@contextmanager
def untouched(optimizer: torch.optim.Optimizer, covered: Tensor) -> Iterator[None]:
    """A step that leaves the entries outside as they were, weights and the optimizer's memory of them alike."""
    (param,) = (param for group in optimizer.param_groups for param in group["params"])
    if bool(covered.all()):
        yield
        return
    before = {name: value.clone() for name, value in _vectors(optimizer, param)}
    weights = param.detach().clone()
    yield
    param.data = torch.where(covered, param.data, weights)
    for name, value in _vectors(optimizer, param):
        value.copy_(torch.where(covered, value, before.get(name, torch.zeros_like(value))))


def _vectors(optimizer: torch.optim.Optimizer, param: Tensor) -> list[tuple[str, Tensor]]:
    found = optimizer.state.get(param, {}).items()
    return [(name, value) for name, value in found if isinstance(value, Tensor) and value.shape == param.shape]
