"""How are pull and push cut into segments?"""

from __future__ import annotations

from potluck.loops.costs import Costs
from potluck.settings import Part

__all__ = ["Sequential", "Transfer"]

Ranges = tuple[tuple[int, int], ...]


class Transfer(Part, frozen=True, kw_only=True):
    """Plans a turn's transfers; a segment is a range of layers, first and last, in the order of the transfer."""

    def pull(self, costs: Costs, samples: int) -> Ranges:
        raise NotImplementedError

    def push(self, costs: Costs, samples: int) -> Ranges:
        raise NotImplementedError


class Sequential(Transfer, frozen=True, kw_only=True, tag="sequential"):
    """The whole model at once: pull, then compute, then push."""

    def pull(self, costs: Costs, samples: int) -> Ranges:
        return ((0, costs.layers - 1),)

    def push(self, costs: Costs, samples: int) -> Ranges:
        return ((0, costs.layers - 1),)
