"""Estimates the overhead and bandwidth of a link online, from the segments that it has carried.

A slowly decaying mean is steady and a quickly decaying one follows changes; one decay rate cannot do both. So the
estimate decays slowly, and drops its history when observations keep deviating in one direction by more than noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import check_seconds

__all__ = ["ChangeDetector", "LinkEstimate"]

_TINY = 1e-12


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


@dataclass(slots=True)
class LinkEstimate:
    """Models a segment of n bytes as `overhead + n · seconds_per_byte`, fitted by exponentially weighted least squares.

    Errors are relative to the duration, because that is how links vary; otherwise the largest segments alone would
    decide. Segments of a single size cannot separate overhead from bandwidth, so the previous overhead takes part
    with a fraction `anchor` of the observations' weight: it decides when nothing else does, and yields when sizes
    differ.
    """

    overhead: float = 0.0
    seconds_per_byte: float | None = None
    memory: float = 0.9
    anchor: float = 0.01
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    _change_detector: ChangeDetector = field(default_factory=ChangeDetector)

    def __post_init__(self) -> None:
        check_seconds(overhead=self.overhead, seconds_per_byte=self.seconds_per_byte or 0.0)
        if not (0.0 <= self.memory < 1.0 and self.anchor > 0.0):
            raise UserError(f"memory is {self.memory} and anchor {self.anchor}; give 0 ≤ memory < 1 and anchor > 0")

    def predicted_s(self, n_bytes: float) -> float:
        """Expected seconds of a segment of `n_bytes`; the overhead alone until a segment was observed."""
        return self.overhead + n_bytes * (self.seconds_per_byte or 0.0)

    def observe_segment(self, n_bytes: float, seconds: float) -> None:
        """Update the estimate with one finished segment. Sizes below a byte count as empty; durations are clamped."""
        check_seconds(n_bytes=n_bytes, seconds=seconds)
        n_bytes = n_bytes if n_bytes >= 1.0 else 0.0
        seconds = min(max(seconds, _TINY), 1.0 / _TINY)
        known = self.seconds_per_byte is not None
        changed = known and self._change_detector.detect_change(self.predicted_s(n_bytes), seconds)
        self._add_sums(n_bytes, seconds, keep=0.0 if changed else self.memory)
        self._solve_coefficients()

    def _add_sums(self, n_bytes: float, seconds: float, keep: float) -> None:
        """Sums of 1, n, t, n² and n·t, each divided by t²; older observations weigh less."""
        weight = 1.0 / (seconds * seconds)
        fresh = (1.0, n_bytes, seconds, n_bytes * n_bytes, n_bytes * seconds)
        self._sums = [keep * old + weight * new for old, new in zip(self._sums, fresh, strict=True)]

    def _solve_coefficients(self) -> None:
        ones, n, t, nn, nt = self._sums
        if nn <= 0.0:  # only empty segments so far: they determine the overhead, not the bandwidth
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
