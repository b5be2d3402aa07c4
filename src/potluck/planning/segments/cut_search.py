"""Local search for good cuts under the duplex policy, for which no exact solver is known.

All workers use the same cuts in both directions, so a layer is pulled in the segment in which it was pushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from potluck.planning.segments.duplex_simulation import TransferTiming, WorkerCosts, WorkerCuts, simulate_duplex

__all__ = ["CutCandidate", "CutSearch", "starting_points", "steady_iteration_s"]

_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_GROWTHS = (1.0, 1.5, 2.0)
_SHIFTS = (1, 2, 4)
_ITERATIONS = 12
_MIN_IMPROVEMENT = 1e-6


class CutCandidate(NamedTuple):
    """Cuts, and the steady-state seconds per iteration that they give."""

    seconds: float
    cuts: tuple[int, ...]


class CutSearch:
    """Hill climbing from several starting points, because the best start may lead to a poor local optimum.

    Identical workers behave identically, so only one of each kind is simulated.
    """

    def __init__(self, workers: Sequence[WorkerCosts], timing: TransferTiming) -> None:
        self._distinct_workers = [worker for i, worker in enumerate(workers) if worker not in workers[:i]]
        self._timing = timing

    def best_candidate(self, starts: Iterable[tuple[int, ...]], climbs: int, trials: int) -> CutCandidate:
        """The best result of climbing from the `climbs` best starts, with at most `trials` simulations each."""
        ranked = sorted(map(self.evaluate_cuts, starts))
        return min(self.climb_from(start, trials) for start in ranked[:climbs])

    def climb_from(self, start: CutCandidate, trials: int) -> CutCandidate:
        """Accept improving changes until no neighbour improves noticeably or the trials are used up."""
        layers = len(self._distinct_workers[0].forward)
        best, changes = start, _neighbouring_cuts(start.cuts, layers)
        for _ in range(trials):
            change = next(changes, None)
            if change is None:
                break
            candidate = self.evaluate_cuts(change)
            if candidate.seconds < best.seconds * (1 - _MIN_IMPROVEMENT):
                best, changes = candidate, _neighbouring_cuts(candidate.cuts, layers)
        return best

    def evaluate_cuts(self, cuts: tuple[int, ...]) -> CutCandidate:
        ends = simulate_duplex(
            self._distinct_workers, [WorkerCuts(cuts, cuts)] * len(self._distinct_workers), self._timing, _ITERATIONS
        )
        return CutCandidate(steady_iteration_s(ends), cuts)


def steady_iteration_s(ends: Sequence[float]) -> float:
    """Seconds per iteration once the ends are periodic (up to four iterations), else the mean of the second half."""
    for length in range(1, min(4, (len(ends) - 1) // 2) + 1):
        last, before = ends[-1] - ends[-1 - length], ends[-1 - length] - ends[-1 - 2 * length]
        if abs(last - before) <= 1e-9 * last:
            return last / length
    half = (len(ends) - 1) // 2
    return (ends[-1] - ends[half]) / (len(ends) - 1 - half)


def starting_points(workers: Sequence[WorkerCosts], proposals: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Even segments, segments that grow from the input (where the device waits), and the given proposals."""
    weights = [sum(w.pull[i] + w.push[i] for w in workers) for i in range(len(workers[0].pull))]
    shapes = ([growth**i for i in range(count)] for growth in _GROWTHS for count in _COUNTS)
    return list(dict.fromkeys((*proposals, *(_proportional_cuts(weights, shape) for shape in shapes))))


def _proportional_cuts(weights: Sequence[float], ratios: Sequence[float]) -> tuple[int, ...]:
    """Cuts that split the weights in the given ratios, as nearly as layer boundaries allow."""
    scale = sum(weights) / sum(ratios)
    marks = [sum(ratios[: i + 1]) * scale for i in range(len(ratios) - 1)]
    cuts = []
    filled, passed = 0.0, 0
    for index, weight in enumerate(weights[:-1]):
        filled += weight
        due = sum(mark < filled + weights[index + 1] / 2 for mark in marks)
        if due > passed:
            cuts.append(index)
        passed = due
    return tuple(cuts)


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
