"""Estimates online how long each layer takes on a device, from the passes that it has run.

The seconds that follow from a layer's MACs are only where the estimate starts: what a layer takes also depends on its
memory traffic, and layers without MACs take time too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potluck.planning.online_estimates import MAX_DEVIATION, ChangeDetector, clip_deviation

__all__ = ["LayerTimes", "PassSeconds"]

_MIN_WEIGHT = 0.25  # of the newest turn
_MIN_NOMINAL = 1e-3  # of a layer, as a fraction of the mean layer: one without MACs is compared with this


class PassSeconds(NamedTuple):
    """Seconds of each layer, input to output, in one forward and one backward pass."""

    forward: Sequence[float]
    backward: Sequence[float]

    @property
    def total_s(self) -> float:
        return sum(self.forward) + sum(self.backward)


@dataclass(slots=True)
class LayerTimes:
    """How much longer than nominal each layer takes, forward and backward.

    The mean over recent turns; older ones are dropped if whole passes keep deviating in one direction by more than
    noise. A turn that is off by more than a factor of two counts only if the next one confirms it.
    """

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    turns: int = 0  # since the last change
    _change_detector: ChangeDetector = field(default_factory=ChangeDetector)

    def predicted_s(self, nominal: PassSeconds) -> PassSeconds:
        """Expected seconds of each layer; the nominal ones until a turn was observed."""
        if len(self.forward) != len(nominal.forward):
            return nominal
        reference = _reference_s(nominal)
        return PassSeconds(_multiply(self.forward, reference.forward), _multiply(self.backward, reference.backward))

    def observe_passes(self, nominal: PassSeconds, seconds: PassSeconds) -> None:
        """Update the estimate with what each layer of one turn took."""
        reference = _reference_s(nominal)
        if reference.total_s <= 0 or seconds.total_s <= 0:
            return
        forward, backward = _divide(seconds.forward, reference.forward), _divide(seconds.backward, reference.backward)
        weight = self._weigh_turn(self.predicted_s(nominal).total_s, seconds.total_s)
        if weight == 1.0 or len(self.forward) != len(forward):
            self.forward, self.backward = forward, backward
        elif weight > 0:
            self.forward = _move_towards(self.forward, forward, weight)
            self.backward = _move_towards(self.backward, backward, weight)

    def observe_total(self, nominal: PassSeconds, seconds: float) -> None:
        """Update the estimate with the sum over all layers, where only that is known."""
        predicted_s = self.predicted_s(nominal).total_s
        if predicted_s <= 0 or seconds <= 0:
            return
        weight = self._weigh_turn(predicted_s, seconds)
        if len(self.forward) != len(nominal.forward):
            self.forward, self.backward = [1.0] * len(nominal.forward), [1.0] * len(nominal.backward)
        factor = 1.0 + weight * (seconds / predicted_s - 1.0)
        self.forward = [factor * ratio for ratio in self.forward]
        self.backward = [factor * ratio for ratio in self.backward]

    def _weigh_turn(self, expected_s: float, observed_s: float) -> float:
        """The weight of a turn: 1 if it replaces what was known, 0 if it is to be confirmed first."""
        if self.turns and self._change_detector.detect_change(expected_s, observed_s):
            self.turns = 0
        elif self.turns and not expected_s / MAX_DEVIATION <= observed_s <= expected_s * MAX_DEVIATION:
            return 0.0
        self.turns += 1
        return max(1.0 / self.turns, _MIN_WEIGHT)


def _reference_s(nominal: PassSeconds) -> PassSeconds:
    least = _MIN_NOMINAL * nominal.total_s / max(1, 2 * len(nominal.forward))
    return PassSeconds([least + each for each in nominal.forward], [least + each for each in nominal.backward])


def _multiply(ratios: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [ratio * each for ratio, each in zip(ratios, seconds, strict=True)]


def _divide(seconds: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [each / usual for each, usual in zip(seconds, reference, strict=True)]


def _move_towards(ratios: Sequence[float], observed: Sequence[float], weight: float) -> list[float]:
    return [
        ratio + weight * ((clip_deviation(new, ratio) if ratio > 0 else new) - ratio)
        for ratio, new in zip(ratios, observed, strict=True)
    ]
