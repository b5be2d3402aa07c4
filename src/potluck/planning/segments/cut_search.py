"""Good cuts for the duplex policy, found by trying: no exact solver is known for it.

All workers use the same cuts in both directions, so that a layer comes back in the company in which it left.
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
_NOTICEABLE = 1e-6


class CutCandidate(NamedTuple):
    """Cuts, and the seconds of a steady iteration with them."""

    seconds: float
    cuts: tuple[int, ...]


class CutSearch:
    """Climbs from the best of the starting points: a good start may lie at the foot of a low hill, so from several.

    Workers that are alike act alike, so one of each kind is rehearsed.
    """

    def __init__(self, workers: Sequence[WorkerCosts], timing: TransferTiming) -> None:
        self._distinct_workers = [worker for i, worker in enumerate(workers) if worker not in workers[:i]]
        self._timing = timing

    def best_candidate(self, starts: Iterable[tuple[int, ...]], climbs: int, trials: int) -> CutCandidate:
        """The best of what is found by climbing from that many of the starts, each within so many trials."""
        ranked = sorted(map(self.evaluate_cuts, starts))
        return min(self.climb_from(start, trials) for start in ranked[:climbs])

    def climb_from(self, found: CutCandidate, trials: int) -> CutCandidate:
        """Take one change after the other as long as some change helps noticeably and trials are left."""
        changes = _neighbouring_cuts(found.cuts, len(self._distinct_workers[0].forward))
        for _ in range(trials):
            change = next(changes, None)
            if change is None:
                break
            other = self.evaluate_cuts(change)
            if other.seconds < found.seconds * (1 - _NOTICEABLE):
                found = other
                changes = _neighbouring_cuts(found.cuts, len(self._distinct_workers[0].forward))
        return found

    def evaluate_cuts(self, cuts: tuple[int, ...]) -> CutCandidate:
        ends = simulate_duplex(
            self._distinct_workers, [WorkerCuts(cuts, cuts)] * len(self._distinct_workers), self._timing, _ITERATIONS
        )
        return CutCandidate(steady_iteration_s(ends), cuts)


def steady_iteration_s(ends: Sequence[float]) -> float:
    """Seconds per iteration once the ends repeat with a period of up to four; else the mean over the later half."""
    for length in range(1, min(4, (len(ends) - 1) // 2) + 1):
        last, before = ends[-1] - ends[-1 - length], ends[-1 - length] - ends[-1 - 2 * length]
        if abs(last - before) <= 1e-9 * last:
            return last / length
    half = (len(ends) - 1) // 2
    return (ends[-1] - ends[half]) / (len(ends) - 1 - half)


def starting_points(workers: Sequence[WorkerCosts], others: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Segments of even length, segments that grow from the input (where the wait is), and what others propose."""
    weights = [sum(w.pull[i] + w.push[i] for w in workers) for i in range(len(workers[0].pull))]
    shapes = ([growth**i for i in range(count)] for growth in _GROWTHS for count in _COUNTS)
    return list(dict.fromkeys((*others, *(_proportional_cuts(weights, shape) for shape in shapes))))


def _proportional_cuts(weights: Sequence[float], parts: Sequence[float]) -> tuple[int, ...]:
    """Cuts that split the weights as nearly as layers allow in the ratio of the parts."""
    scale = sum(weights) / sum(parts)
    marks = [sum(parts[: i + 1]) * scale for i in range(len(parts) - 1)]
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
    """Drop a cut, shift a cut, halve a segment."""
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
