"""Computes how many batches each stage may have in flight, and the period that follows.

A batch that leaves stage i, turns at stage j and returns takes trip(i, j): the forwards and backwards of stages
i … j and the transfers between them. Meanwhile stage i may start w_i − w_j + 1 batches, so with full-duplex links the
pipeline's period is exactly

    max{ each stage's forward + backward, each transfer, trip(i, j) / (w_i − w_j + 1) for i < j }.

(Each bound is a cycle of the dependency graph; a path that turns more often is a sum of such trips.)
The published windows N − i only suffice for the computation of a balanced pipeline: transfers that take a fraction s
of the period each way slow it by a factor of 1 + 2s·(N−1)/N, however well they overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

__all__ = ["StageDurations", "filling_windows", "published_windows", "steady_period"]

_HALVINGS = 40


@dataclass(frozen=True)
class StageDurations:
    """Seconds of each stage's forward and backward pass, and of each link's downstream and upstream transfer."""

    forward: Sequence[float]
    backward: Sequence[float]
    down: Sequence[float]
    up: Sequence[float]

    def __post_init__(self) -> None:
        stages = len(self.forward)
        assert stages == len(self.backward) == len(self.down) + 1 == len(self.up) + 1

    @property
    def stages(self) -> int:
        return len(self.forward)

    def min_period(self) -> float:
        """Lower bound of the period: the busiest stage or link direction."""
        both = [forward + backward for forward, backward in zip(self.forward, self.backward, strict=True)]
        return max(*both, *self.down, *self.up, 0.0)

    def round_trips(self, origin: int) -> Iterator[tuple[int, float]]:
        """Each stage after `origin`, with the time from `origin` to it and back."""
        computed = self.forward[origin] + self.backward[origin]
        hops = [
            self.down[stage - 1] + self.forward[stage] + self.backward[stage] + self.up[stage - 1]
            for stage in range(origin + 1, self.stages)
        ]
        return enumerate(list(accumulate(hops, initial=computed))[1:], start=origin + 1)


def published_windows(stages: int) -> tuple[int, ...]:
    """N − i for stage i of N."""
    return tuple(range(stages, 0, -1))


def filling_windows(
    durations: StageDurations, period: float | None = None, max_in_flight: int | None = None
) -> tuple[int, ...]:
    """The smallest windows that reach a period, by default the shortest; a batch in flight is a version to hold.

    Where that takes more than `max_in_flight` batches, the windows of the shortest period that takes no more.
    """
    shortest = durations.min_period() if period is None else period
    windows = _windows_for_period(shortest, durations)
    if max_in_flight is None or windows[0] <= max_in_flight:
        return windows
    longest = max(trip for _, trip in durations.round_trips(0))  # one batch at a time
    for _ in range(_HALVINGS):
        middle = (shortest + longest) / 2
        if _windows_for_period(middle, durations)[0] <= max_in_flight:
            longest = middle
        else:
            shortest = middle
    return _windows_for_period(longest, durations)


def _windows_for_period(target: float, durations: StageDurations) -> tuple[int, ...]:
    windows = [1] * durations.stages
    for stage in reversed(range(durations.stages - 1)):
        needed = (windows[far] - 1 + _batches_in_flight(trip, target) for far, trip in durations.round_trips(stage))
        windows[stage] = max(windows[stage + 1], *needed)
    return tuple(windows)


def steady_period(durations: StageDurations, windows: Sequence[int]) -> float:
    """Seconds between two batches of a full 1F1B pipeline with full-duplex links."""
    limits = [
        trip / (windows[near] - windows[far] + 1)
        for near in range(durations.stages)
        for far, trip in durations.round_trips(near)
    ]
    return max(durations.min_period(), *limits, 0.0)


def _batches_in_flight(trip: float, period: float) -> int:
    """Trip over period, rounded up; the tolerance keeps floating-point error from adding a batch."""
    return max(1, math.ceil(trip / period * (1 - 1e-9))) if period else 1
