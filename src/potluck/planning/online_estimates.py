"""Estimates the overhead and bandwidth of a link online, from the transfers that it has carried.

A slowly decaying mean is steady and a quickly decaying one follows changes; one decay rate cannot do both. So the
estimate decays slowly, and drops its history when observations keep deviating in one direction by more than noise.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import check_seconds

__all__ = ["MAX_DEVIATION", "ChangeDetector", "LinkEstimate", "NoisyEstimate", "clip_deviation"]

_TINY = 1e-12
MAX_DEVIATION = 2.0  # from what was expected, as a factor
_SMALL_BYTES = 16 << 10  # smaller transfers weigh as if they had this size


@dataclass(slots=True)
class ChangeDetector:
    """Detects lasting changes with a two-sided CUSUM of log ratios.

    Deviations within `drift` count as noise and let the sums decay. One observation adds at most `max_step`, so a
    single outlier never triggers; two large ones do, and so do a few that are off by a quarter.
    """

    drift: float = 0.1
    max_step: float = 0.2
    limit: float = 0.35
    above: float = 0.0
    below: float = 0.0

    def detect_change(self, expected: float, observed: float) -> bool:
        """Whether this observation completes a change; the sums then start again from zero."""
        off = math.log(max(observed, _TINY) / max(expected, _TINY))
        self.above = max(0.0, self.above + min(off - self.drift, self.max_step))
        self.below = max(0.0, self.below + min(-off - self.drift, self.max_step))
        if max(self.above, self.below) < self.limit:
            return False
        self.above = self.below = 0.0
        return True


_LOWER_QUARTILE = 0.3186 * math.sqrt(2.0)  # of the distance of two normal observations, in standard deviations


@dataclass(slots=True)
class NoisyEstimate:
    """The median of the newest observations, and how uncertain it is.

    The noise is the lower quartile of the distances of consecutive observations (of their logarithms), so a lasting
    change does not look like noise: it is one large distance, or a few, among small ones.
    """

    window: int = 15
    _observed: deque[float] = field(default_factory=deque)

    def observe(self, value: float) -> None:
        self._observed.append(value)
        if len(self._observed) > self.window:
            self._observed.popleft()

    @property
    def median(self) -> float:
        return statistics.median(self._observed)

    @property
    def noise(self) -> float:
        """The relative standard deviation of one observation; 0 until there are two."""
        if len(self._observed) < 2:
            return 0.0
        logs = [math.log(max(value, _TINY)) for value in self._observed]
        distances = sorted(abs(later - earlier) for earlier, later in pairwise(logs))
        return distances[(len(distances) - 1) // 4] / _LOWER_QUARTILE

    @property
    def uncertainty(self) -> float:
        """The relative standard error of the median."""
        return 1.25 * self.noise / math.sqrt(max(1, len(self._observed)))


@dataclass(slots=True)
class LinkEstimate:
    """Models a transfer of n bytes as `overhead + n · seconds_per_byte`: least squares, older turns weigh less.

    A transfer weighs as much as its bytes, and deviates from the expectation by at most a factor of two. So neither a
    small transfer that a token bucket lets through at once nor a large one that was held up decides alone. Whether the
    link has changed is judged by all transfers of a turn together; a turn that is off by more than a factor of two
    counts only if the next one confirms it.

    Transfers of a single size cannot separate overhead from bandwidth, so the previous overhead takes part with a
    fraction `anchor` of the observations' weight: it decides when nothing else does, and yields when sizes differ.
    """

    overhead: float = 0.0
    seconds_per_byte: float | None = None
    memory: float = 0.75  # the weight of a turn compared with the next
    anchor: float = 0.01
    observed: bool = False  # whether the figures come from transfers
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    _change_detector: ChangeDetector = field(default_factory=ChangeDetector)

    def __post_init__(self) -> None:
        check_seconds(overhead=self.overhead, seconds_per_byte=self.seconds_per_byte or 0.0)
        if not (0.0 <= self.memory < 1.0 and self.anchor > 0.0):
            raise UserError(f"memory is {self.memory} and anchor {self.anchor}; give 0 ≤ memory < 1 and anchor > 0")

    def predicted_s(self, n_bytes: float) -> float:
        """Expected seconds of a transfer of `n_bytes`; the overhead alone until one was observed."""
        return self.overhead + n_bytes * (self.seconds_per_byte or 0.0)

    def observe_transfers(self, transfers: Sequence[tuple[float, float]]) -> None:
        """Update the estimate with the bytes and seconds of a turn's transfers.

        Sizes below a byte count as empty; durations are clamped.
        """
        turn = [_clamp_transfer(n_bytes, seconds) for n_bytes, seconds in transfers]
        if not turn:
            return
        keep = 0.0
        if self.observed:
            expected = [self.predicted_s(n_bytes) for n_bytes, _ in turn]
            expected_s, observed_s = sum(expected), sum(seconds for _, seconds in turn)
            if not self._change_detector.detect_change(expected_s, observed_s):
                if observed_s != clip_deviation(observed_s, expected_s):
                    return
                keep = self.memory
                turn = [(n, clip_deviation(took, usual)) for (n, took), usual in zip(turn, expected, strict=True)]
        self._sums = [keep * old for old in self._sums]
        self.observed = self.observed or any(n_bytes > 0 for n_bytes, _ in turn)
        for n_bytes, seconds in turn:
            self._add_sums(n_bytes, seconds)
        self._solve_coefficients()

    def _add_sums(self, n_bytes: float, seconds: float) -> None:
        """Sums of 1, n, t, n² and n·t, each divided by n, which weighs a transfer by its bytes."""
        weight = 1.0 / max(n_bytes, _SMALL_BYTES)
        fresh = (1.0, n_bytes, seconds, n_bytes * n_bytes, n_bytes * seconds)
        self._sums = [old + weight * new for old, new in zip(self._sums, fresh, strict=True)]

    def _solve_coefficients(self) -> None:
        ones, n, t, nn, nt = self._sums
        if nn <= 0.0:  # only empty transfers so far: they determine the overhead, not the bandwidth
            self.overhead = t / ones
            return
        pull = self.anchor * ones
        determinant = (ones + pull) * nn - n * n
        overhead = ((t + pull * self.overhead) * nn - n * nt) / determinant
        # If the unconstrained optimum is negative, the best non-negative pair lies on the boundary.
        if overhead < 0.0:
            overhead = 0.0
        per_byte = (nt - overhead * n) / nn
        if per_byte < 0.0:
            overhead, per_byte = t / ones, 0.0
        self.overhead, self.seconds_per_byte = overhead, per_byte


def _clamp_transfer(n_bytes: float, seconds: float) -> tuple[float, float]:
    check_seconds(n_bytes=n_bytes, seconds=seconds)
    return n_bytes if n_bytes >= 1.0 else 0.0, min(max(seconds, _TINY), 1.0 / _TINY)


def clip_deviation(seconds: float, expected: float) -> float:
    """The observation, or the nearest one that is not further than a factor of two from what was expected."""
    return min(max(seconds, expected / MAX_DEVIATION), expected * MAX_DEVIATION)
