"""Cuts an update down to what its turn trained, where mini-batches keep the leading units of every channel set.

    mini-batches of a turn    ██░░░░  ████░░  █░░░░░        units kept of a set: 2, 4 and 1 of 6
    pushed                    ████                          the widest; the coordinator adds zeros for the others

Each mini-batch leaves everything outside its own leading units as it was, so the update is zero beyond the widest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from torch import Tensor

from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelChoice
from potluck.model.submodels.slimmable_model import SlimmableModel, choose_subsets, leading_units
from potluck.model.submodels.submodel_selection import SubmodelSelection
from potluck.model.submodels.width_sampler import Counts, WidthChoice

__all__ = ["UpdateSlicer"]


class UpdateSlicer:
    """Slices the updates of one model; a slice is known by its number of units of every channel set."""

    def __init__(self, slimmable: SlimmableModel) -> None:
        self._slimmable = slimmable
        self.layout_of = lru_cache(maxsize=256)(self._narrow_layout)

    def widest_counts(self, choices: Iterable[SubmodelChoice]) -> Counts:
        """The units that at least one of these mini-batches trained; empty if that is the whole model."""
        counts = []
        for choice in choices:
            assert isinstance(choice, WidthChoice)
            counts.append(choice.counts)
        widest = tuple(map(max, zip(*counts, strict=True)))
        return () if widest == self._slimmable.full_counts else widest

    def refusal(self, counts: Sequence[int]) -> str | None:
        """Why no update can be a slice of this size; None if it can."""
        full = self._slimmable.full_counts
        if len(counts) != len(full) or not all(0 < kept <= size for kept, size in zip(counts, full, strict=True)):
            return f"it keeps {list(counts)[: len(full) + 1]} units of channel sets of {list(full)}"
        return None

    def cut(self, counts: Counts, params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The slice of both vectors of an update."""
        selection = self._select(counts)
        return selection.params.gather(params), selection.buffers.gather(buffers)

    def expand(self, counts: Counts, params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The reverse of `cut`: the whole vectors, zero where nothing was trained."""
        selection, layout = self._select(counts), self._slimmable.layout
        whole = params.new_zeros(layout.param_bounds[-1]), buffers.new_zeros(layout.buffer_bounds[-1])
        selection.params.scatter(params, whole[0])
        selection.buffers.scatter(buffers, whole[1])
        return whole

    def _select(self, counts: Counts) -> SubmodelSelection:
        return self._slimmable.select_units(choose_subsets(self._slimmable, counts, leading_units))

    def _narrow_layout(self, counts: Counts) -> WeightLayout:
        """The layout of the slice."""
        return self._slimmable.narrow_layout(counts)
