"""Local search for good cuts under the duplex policy, for which no exact solver is known.

All workers use the same cuts in both directions, so a layer is pulled in the segment in which it was pushed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from potluck.planning.segments.duplex_schedule import DuplexSchedule, WorkerCosts

__all__ = ["CutCandidate", "CutSearch", "starting_points"]

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_GROWTHS = (1.0, 1.5, 2.0)
_SHIFTS = (1, 2, 4)
_MIN_IMPROVEMENT = 1e-6


class CutCandidate(NamedTuple):
    """Cuts, and the steady-state seconds per iteration that they give."""

    seconds: float
    cuts: tuple[int, ...]


class CutSearch:
    """Hill climbing from several starting points, because the best start may lead to a poor local optimum.

    `effort` counts the segments of all cuts that were evaluated; a thousand take about a millisecond.
    """

    def __init__(self, schedule: DuplexSchedule) -> None:
        self._schedule = schedule
        self.effort = 0

    def rank_starts(self, starts: Iterable[tuple[int, ...]]) -> list[CutCandidate]:
        """The starting points, best first."""
        return sorted(map(self.evaluate_cuts, starts))

    def climb_from(self, start: CutCandidate, until_effort: float, tried: int = 0) -> tuple[CutCandidate, int | None]:
        """Accept improving changes until so much effort is spent in all; the first `tried` changes are known not to.

        Also returns how many changes of the result were tried; None if all were and none improves it noticeably.
        """
        best = start
        changes: Iterator[tuple[int, ...]] = islice(_neighbouring_cuts(start.cuts, self._schedule.layers), tried, None)
        while self.effort < until_effort:
            change = next(changes, None)
            if change is None:
                return best, None
            candidate = self.evaluate_cuts(change)
            tried += 1
            if candidate.seconds < best.seconds * (1 - _MIN_IMPROVEMENT):
                best, tried, changes = candidate, 0, _neighbouring_cuts(candidate.cuts, self._schedule.layers)
        return best, tried

    def evaluate_cuts(self, cuts: tuple[int, ...]) -> CutCandidate:
        self.effort += len(cuts) + 1
        return CutCandidate(self._schedule.iteration_s(cuts), cuts)


def starting_points(workers: Sequence[WorkerCosts], proposals: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Even segments, segments that grow from the input (where the device waits), and the given proposals."""
    weights = [sum(w.pull[i] + w.push[i] for w in workers) for i in range(len(workers[0].pull))]
    # A mark belongs to the first boundary that is at most half of the next layer before it.
    nearest = [filled + ahead / 2 for filled, ahead in zip(accumulate(weights), weights[1:], strict=False)]
    shapes = ([growth**i for i in range(count)] for growth in _GROWTHS for count in _COUNTS)
    return list(dict.fromkeys((*proposals, *(_proportional_cuts(nearest, sum(weights), shape) for shape in shapes))))


def _proportional_cuts(nearest: Sequence[float], total: float, ratios: Sequence[float]) -> tuple[int, ...]:
    """Cuts that split the weights in the given ratios, as nearly as layer boundaries allow."""
    scale = total / sum(ratios)
    cuts = (bisect_right(nearest, mark * scale) for mark in accumulate(ratios[:-1]))
    return tuple(dict.fromkeys(cut for cut in cuts if cut < len(nearest)))


def _neighbouring_cuts(cuts: tuple[int, ...], layers: int) -> Iterator[tuple[int, ...]]:
    """All cuts that differ by one change: a cut dropped, a cut shifted, a segment halved."""
    for i in range(len(cuts)):
        yield cuts[:i] + cuts[i + 1 :]
    for i, cut in enumerate(cuts):
        low, high = cuts[i - 1] if i else -1, cuts[i + 1] if i + 1 < len(cuts) else layers - 1
        for shifted in (cut + sign * shift for shift in _SHIFTS for sign in (-1, 1)):
            if low < shifted < high:
                yield (*cuts[:i], shifted, *cuts[i + 1 :])
    for low, high in zip((-1, *cuts), (*cuts, layers - 1), strict=True):
        if high - low > 1:
            yield tuple(sorted((*cuts, (low + high) // 2)))
