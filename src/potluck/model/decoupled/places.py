"""Where the numbers of a part lie in the vectors of the whole, for a coordinator that keeps its model flat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from potluck.model.state import Entry, Layout

__all__ = ["places"]


def places(whole: Layout, part: Layout) -> tuple[Tensor, Tensor]:
    """For each number of the part's two vectors its place in the whole's: `whole_params[places] = part_params`."""
    return _places(whole.params, part.params), _places(whole.buffers, part.buffers)


def _places(whole: Iterable[Entry], part: Sequence[Entry]) -> Tensor:
    where = {entry.name: entry for entry in whole}
    found = [torch.arange(where[entry.name].start, where[entry.name].stop) for entry in part]
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
