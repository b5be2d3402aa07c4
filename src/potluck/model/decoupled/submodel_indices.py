"""Where the numbers of a part lie in the vectors of the whole, for a coordinator that keeps its model flat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from potluck.model.model_state import TensorEntry, WeightLayout

__all__ = ["indices_in_whole"]


def indices_in_whole(whole: WeightLayout, part: WeightLayout) -> tuple[Tensor, Tensor]:
    """For each number of the part's two vectors its place in the whole's: `whole_params[places] = part_params`."""
    return _whole_entry_indices(whole.params, part.params), _whole_entry_indices(whole.buffers, part.buffers)


def _whole_entry_indices(whole: Iterable[TensorEntry], part: Sequence[TensorEntry]) -> Tensor:
    where = {entry.name: entry for entry in whole}
    found = [torch.arange(where[entry.name].start, where[entry.name].stop) for entry in part]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
