"""What links and devices take, estimated while training: means that forget, and forget at once after a change.

Forgetting slowly is steady, forgetting fast is quick to follow; one rate cannot be both. So both estimators forget
slowly, and drop their past when observations keep lying to one side by more than noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import check_seconds, layer_seconds

__all__ = ["ChangeDetector", "LayerTimeEstimate", "LinkEstimate"]

_TINY = 1e-12


@dataclass(slots=True)
class ChangeDetector:
    """Notices a lasting change: two sums, one for each side, of how far observations lie off (a CUSUM of logarithms).

    What lies within `drift` counts as noise and lets the sums sink. One observation adds at most `most`, so that
    a single outlier is never enough; two that are far off are, and so are a few that are off by a quarter.
    """

    drift: float = 0.1
    max_step: float = 0.2
    limit: float = 0.35
    above: float = 0.0
    below: float = 0.0

    def detect_change(self, expected: float, observed: float) -> bool:
        """True at the observation that tips the balance; a new count begins after it."""
        off = math.log(max(observed, _TINY) / max(expected, _TINY))
        self.above = max(0.0, self.above + min(off - self.drift, self.max_step))
        self.below = max(0.0, self.below + min(-off - self.drift, self.max_step))
        if max(self.above, self.below) < self.limit:
            return False
        self.above = self.below = 0.0
        return True


@dataclass(slots=True)
class LinkEstimate:
    """A segment of n bytes takes `overhead + n · seconds_per_byte`: least squares over those seen, with forgetting.

    Errors count relative to the duration, since that is how links vary; else the largest segment alone would
    decide. Segments of one size cannot tell overhead from bandwidth, so the overhead known so far takes part with
    the weight `anchor` of the observations: it decides when nothing else does and gives way when sizes differ.
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
        """Seconds a segment of so many bytes should take; the overhead alone until a segment was seen."""
        return self.overhead + n_bytes * (self.seconds_per_byte or 0.0)

    def observe_segment(self, n_bytes: float, seconds: float) -> None:
        """Take in one finished segment; less than a byte counts as none, and durations are kept within reason."""
        check_seconds(n_bytes=n_bytes, seconds=seconds)
        n_bytes = n_bytes if n_bytes >= 1.0 else 0.0
        seconds = min(max(seconds, _TINY), 1.0 / _TINY)
        known = self.seconds_per_byte is not None
        changed = known and self._change_detector.detect_change(self.predicted_s(n_bytes), seconds)
        self._add_sums(n_bytes, seconds, keep=0.0 if changed else self.memory)
        self._solve_coefficients()

    def _add_sums(self, n_bytes: float, seconds: float, keep: float) -> None:
        """Sums of 1, n, t, n², n·t, each over t², the older ones worth less."""
        weight = 1.0 / (seconds * seconds)
        fresh = (1.0, n_bytes, seconds, n_bytes * n_bytes, n_bytes * seconds)
        self._sums = [keep * old + weight * new for old, new in zip(self._sums, fresh, strict=True)]

    def _solve_coefficients(self) -> None:
        ones, n, t, nn, nt = self._sums
        if nn <= 0.0:  # nothing but empty segments: they show the overhead and leave the bandwidth alone
            self.overhead = t / ones
            return
        pull = self.anchor * ones
        determinant = (ones + pull) * nn - n * n
        overhead = ((t + pull * self.overhead) * nn - n * nt) / determinant
        # The best non-negative pair lies on the border where the free one is negative.
        if overhead < 0.0:
            overhead = 0.0
        per_byte = (nt - overhead * n) / nn
        if per_byte < 0.0:
            overhead, per_byte = t / ones, 0.0
        self.overhead, self.seconds_per_byte = overhead, per_byte


@dataclass(slots=True)
class LayerTimeEstimate:
    """Mean forward and backward seconds of each layer, with forgetting; empty until the first iteration was seen."""

    memory: float = 0.75
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    _change_detector: ChangeDetector = field(default_factory=ChangeDetector)

    def __post_init__(self) -> None:
        if not 0.0 <= self.memory < 1.0:
            raise UserError(f"memory is {self.memory}; give a share from 0 to below 1")

    def observe_iteration(self, forward: Sequence[float], backward: Sequence[float]) -> None:
        """Take in one iteration. A device changes as a whole, so its total tells whether to forget at once."""
        new_forward, new_backward = layer_seconds("forward", forward), layer_seconds("backward", backward)
        layers = len(self.forward) or len(new_forward)
        if not len(new_forward) == len(new_backward) == layers:
            raise UserError(
                f"forward has {len(new_forward)} and backward {len(new_backward)} layers; give {layers} of both"
            )
        expected = math.fsum(self.forward) + math.fsum(self.backward)
        changed = not self.forward or self._change_detector.detect_change(
            expected, math.fsum(new_forward) + math.fsum(new_backward)
        )
        keep = 0.0 if changed else self.memory
        self.forward = _blend_means(self.forward or new_forward, new_forward, keep)
        self.backward = _blend_means(self.backward or new_backward, new_backward, keep)


def _blend_means(old: Sequence[float], new: Sequence[float], keep: float) -> list[float]:
    return [keep * before + (1.0 - keep) * now for before, now in zip(old, new, strict=True)]
