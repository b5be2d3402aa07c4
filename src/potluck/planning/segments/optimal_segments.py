"""Finds the optimal cuts of one transfer exactly, in O(L).

Layers are counted from the output, as in a push (a pull is the same problem, see `segment_plan`). With C(m) and
G(m) the computation and transfer of the first m layers, B(m), the earliest end of pushing them, obeys

    B(0) = 0,    B(m) = Δt + G(m) + min over k < m of max(B(k), C(m)) − G(k)

where the last segment begins at k. B does not decrease with m (dropping a layer from the best schedule makes it no
longer), and neither does b(k) = B(k) − G(k). So let k* be the largest k < m with B(k) ≤ C(m):
  - up to k* the minimum is over C(m) − G(k), smallest at k* itself since G rises;
  - beyond k* it is over b(k), smallest at k* + 1 since b rises.
Two candidates remain, and because C rises, k* only moves right: each pointer passes each layer once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf

__all__ = ["optimal_cuts"]


def optimal_cuts(compute: Sequence[float], transfer: Sequence[float], overhead: float) -> tuple[tuple[int, ...], float]:
    """The cuts, in layer order, and the makespan."""
    layers = len(compute)
    moved = list(accumulate(reversed(transfer), initial=0.0))  # G
    # Unknown entries are infinite, which keeps both candidates below m without a check.
    end = [0.0] + [inf] * layers  # B
    lead = [0.0] + [inf] * layers  # b
    begin = [0] * (layers + 1)  # the k that gave B(m)
    star = 0
    follower = 1
    for m, computed in enumerate(accumulate(reversed(compute)), 1):
        while end[follower] <= computed:
            star = follower
            follower += 1
        least = computed - moved[star]
        if lead[follower] < least:
            least = lead[follower]
            begin[m] = follower
        else:
            begin[m] = star
        lead[m] = least = least + overhead
        end[m] = least + moved[m]
    return _trace_cuts(begin), end[-1]


def _trace_cuts(begin: Sequence[int]) -> tuple[int, ...]:
    """Follow the segment starts backwards: the last segment holds the first layers, so the cuts come in layer order."""
    last = len(begin) - 1
    cuts = []
    boundary = begin[last]
    while boundary:
        cuts.append(last - boundary - 1)
        boundary = begin[boundary]
    return tuple(cuts)
