"""Learning-rate schedules: a factor for each round, some by the round alone and one that follows a metric.

The coordinator observes every evaluation and keeps the state of a schedule that follows a metric. What devices need of
it, the rounds at which the factor fell, travels with their work: a factor is a pure function of the round and of these
drops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from potluck.settings import Part, doc

__all__ = [
    "ConstantSchedule",
    "CosineSchedule",
    "LearningRateSchedule",
    "PlateauSchedule",
    "PlateauState",
    "StepSchedule",
]

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]

_LEAST_DROP = 1e-8  # smaller ones make no difference


class LearningRateSchedule(Part, frozen=True, kw_only=True):
    """A factor on the learning rate for each round."""

    warmup: Annotated[int, msgspec.Meta(ge=0), doc("Rounds over which the factor rises linearly to 1.")] = 0

    @property
    def followed_metric(self) -> str | None:
        """The metric whose evaluations it observes, if any."""
        return None

    def lr_factor(self, round: int, drops: Sequence[int] = ()) -> float:
        """The factor of a round; `drops` are the rounds at which a schedule that follows a metric reduced it."""
        if round < self.warmup:
            return (round + 1) / self.warmup
        return self.factor_after_warmup(round) * self.drop_factor(sum(at <= round for at in drops))

    def factor_after_warmup(self, round: int) -> float:
        raise NotImplementedError

    def drop_factor(self, drops: int) -> float:
        """The factor after so many drops."""
        return 1.0


class ConstantSchedule(LearningRateSchedule, frozen=True, kw_only=True, tag="constant"):
    """The factor is 1."""

    def factor_after_warmup(self, round: int) -> float:
        return 1.0


class StepSchedule(LearningRateSchedule, frozen=True, kw_only=True, tag="steps"):
    """The factor is multiplied at given rounds."""

    at: Annotated[tuple[int, ...], doc("Rounds at which the factor is multiplied.")]
    by: Annotated[Positive, doc("What it is multiplied by.")] = 0.1

    def factor_after_warmup(self, round: int) -> float:
        return float(self.by ** sum(round >= at for at in self.at))


class CosineSchedule(LearningRateSchedule, frozen=True, kw_only=True, tag="cosine"):
    """The factor falls from 1 along a cosine."""

    rounds: Annotated[int, msgspec.Meta(ge=1), doc("Rounds until the end of the curve.")]
    floor: Annotated[NonNegative, doc("Factor at the end.")] = 0.0

    def factor_after_warmup(self, round: int) -> float:
        progress = min(round / self.rounds, 1.0)
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * progress))


class PlateauState(msgspec.Struct):
    """What a plateau schedule has observed; saved with every checkpoint."""

    best: float | None = None
    bad: int = 0  # evaluations without improvement
    cooldown: int = 0  # evaluations to go
    round: int = -1  # of the latest evaluation
    drops: list[int] = []  # rounds from which the factor is lower


class PlateauSchedule(LearningRateSchedule, frozen=True, kw_only=True, tag="plateau"):
    """The factor falls when a metric has stopped improving, as in PyTorch's `ReduceLROnPlateau`."""

    metric: Annotated[str, doc("Metric of the task that is followed, by its direction.")] = "loss"
    factor: Annotated[Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)], doc("What the factor is multiplied by.")] = 0.1
    patience: Annotated[Count, doc("Evaluations without improvement that are tolerated.")] = 10
    threshold: Annotated[NonNegative, doc("Least relative change that counts as an improvement.")] = 1e-4
    cooldown: Annotated[Count, doc("Evaluations after a drop before counting begins again.")] = 0
    floor: Annotated[NonNegative, doc("Lowest factor.")] = 0.0

    @property
    def followed_metric(self) -> str:
        return self.metric

    def factor_after_warmup(self, round: int) -> float:
        return 1.0

    def drop_factor(self, drops: int) -> float:
        return float(max(self.factor**drops, self.floor))

    def observe_evaluation(self, state: PlateauState, round: int, value: float, higher_is_better: bool) -> PlateauState:
        """The state after an evaluation; one of a round that was already observed (a repeated one) changes nothing."""
        if round <= state.round:
            return state
        best, bad, cooldown, drops = state.best, state.bad + 1, state.cooldown, state.drops
        if self._is_better(value, best, higher_is_better):
            best, bad = value, 0
        if cooldown > 0:
            bad, cooldown = 0, cooldown - 1
        if bad > self.patience:
            bad, cooldown = 0, self.cooldown
            if self.drop_factor(len(drops)) - self.drop_factor(len(drops) + 1) > _LEAST_DROP:
                drops = [*drops, round]
        return PlateauState(best, bad, cooldown, round, drops)

    def _is_better(self, value: float, best: float | None, higher_is_better: bool) -> bool:
        if best is None:
            return not math.isnan(value)
        if higher_is_better:
            return value > best * (1 + self.threshold)
        return value < best * (1 - self.threshold)
