"""Published segmentation rules that the optimal cuts are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from potluck.planning.segments.segment_costs import Direction

__all__ = ["ibatch_cuts", "layer_by_layer_cuts", "mg_wfbp_cuts", "sequential_cuts"]


def sequential_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """One segment: nothing overlaps."""
    return []


def layer_by_layer_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """One segment per layer: maximal overlap and maximal overhead (Poseidon, in both directions)."""
    return list(range(len(compute) - 1))


def ibatch_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """iBatch (AAAI 2019): each segment holds the layers that fit beside the previous one, in lock step.

    The first segment is a single layer. While a segment is on the second machine (a pull computes it, a push
    sends it), the next one takes the layers that the first machine can finish in that time, at least one.
    """
    if direction == "pull":
        return [end - 1 for end in _lock_step_ends(transfer, compute, overhead, 0.0)]
    ends = _lock_step_ends(compute[::-1], transfer[::-1], 0.0, overhead)
    return sorted(len(compute) - end - 1 for end in ends)


def _lock_step_ends(
    first: Sequence[float], second: Sequence[float], first_fixed: float, second_fixed: float
) -> Iterator[int]:
    """Number of layers covered after each segment but the last."""
    begin, end = 0, min(1, len(first))
    while end < len(first):
        yield end
        window = second_fixed + sum(second[begin:end])
        begin, end = end, end + 1
        filled = first_fixed + first[begin]
        while end < len(first) and filled + first[end] <= window:
            filled += first[end]
            end += 1


def mg_wfbp_cuts(
    compute: Sequence[float], transfer: Sequence[float], overhead: float, direction: Direction
) -> list[int]:
    """MG-WFBP (INFOCOM 2019): a gradient is merged with the next if that is ready before this one's overhead is over.

    The rule is defined for a push; a pull uses the cuts of its time-reversed push.
    """
    ready = list(accumulate(reversed(compute)))
    cuts = []
    link_free = pending = 0.0
    for index, moving in enumerate(reversed(transfer)):
        pending += moving
        start = max(link_free, ready[index])
        if index + 1 < len(ready) and ready[index + 1] >= start + overhead:
            cuts.append(len(ready) - index - 2)
            link_free, pending = start + overhead + pending, 0.0
    return cuts[::-1]
