"""The best cuts of one transfer, exact in O(L).

Everything is counted from the output, as in a push (a pull is the same problem, see `schedule`). With C(m) and
G(m) the computation and transfer of the first m layers, B(m), the earliest end of pushing them, obeys

    B(0) = 0,    B(m) = Δt + G(m) + min over k < m of max(B(k), C(m)) − G(k)

where k is where the last segment begins. B does not fall with m (drop a layer from the best schedule and it is
no longer), and neither does b(k) = B(k) − G(k). So let k* be the largest k < m with B(k) ≤ C(m):
  - up to k* the minimum is over C(m) − G(k), smallest at k* itself since G rises;
  - beyond k* it is over b(k), smallest at k* + 1 since b rises.
Two candidates are left, and since C rises k* only ever moves to the right: each pointer passes each layer once.
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
    # What is not known yet is infinite, which keeps both candidates below m without asking.
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
    """Follow the beginnings from the last segment back: it holds the first layers, so the cuts come in layer order."""
    last = len(begin) - 1
    cuts = []
    boundary = begin[last]
    while boundary:
        cuts.append(last - boundary - 1)
        boundary = begin[boundary]
    return tuple(cuts)
