"""The coordinator's optimizers (torch's own, on one flat vector) and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
import torch
from torch import Tensor, nn

from potluck.settings import Part, doc

__all__ = ["Adam", "ConstantSchedule", "CosineSchedule", "LearningRateSchedule", "Optimizer", "Sgd", "StepSchedule"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class Optimizer(Part, frozen=True, kw_only=True):
    """Applies a merged update or gradient to the weights."""

    lr: Annotated[Positive, doc("Learning rate.")] = 1.0

    def build_optimizer(self, params: Tensor) -> torch.optim.Optimizer:
        raise NotImplementedError

    def predicted_step(self, moments: Mapping[str, Tensor]) -> Tensor | None:
        """What the next step would subtract from the weights according to the moments; None if they do not tell."""
        raise NotImplementedError


class Sgd(Optimizer, frozen=True, kw_only=True, tag="sgd"):
    """Stochastic gradient descent; with `lr = 1` it adds the mean of the updates."""

    momentum: Annotated[Fraction, doc("Momentum.")] = 0.0
    weight_decay: Annotated[NonNegative, doc("Weight decay (L2).")] = 0.0
    nesterov: Annotated[bool, doc("Use Nesterov's momentum.")] = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("`nesterov` needs a `momentum` above 0")

    def build_optimizer(self, params: Tensor) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [nn.Parameter(params)],
            lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov,
        )  # fmt: skip

    def predicted_step(self, moments: Mapping[str, Tensor]) -> Tensor | None:
        return self.lr * moments["momentum_buffer"] if self.momentum else None


class Adam(Optimizer, frozen=True, kw_only=True, tag="adam"):
    """Adam; on the updates of local SGD this is FedAdam."""

    lr: Positive = 0.001
    beta1: Annotated[Fraction, doc("Decay of the mean of gradients.")] = 0.9
    beta2: Annotated[Fraction, doc("Decay of the mean of squared gradients.")] = 0.999
    epsilon: Annotated[Positive, doc("Added to the denominator.")] = 1e-8
    weight_decay: Annotated[NonNegative, doc("Weight decay (L2).")] = 0.0

    def build_optimizer(self, params: Tensor) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [nn.Parameter(params)],
            lr=self.lr, betas=(self.beta1, self.beta2), eps=self.epsilon, weight_decay=self.weight_decay,
        )  # fmt: skip

    def predicted_step(self, moments: Mapping[str, Tensor]) -> Tensor | None:
        steps = float(moments["step"])
        if not steps:
            return None
        mean = moments["exp_avg"] / (1.0 - self.beta1**steps)
        root_mean_square = torch.sqrt(moments["exp_avg_sq"] / (1.0 - self.beta2**steps))
        return torch.div(self.lr * mean, root_mean_square + self.epsilon)


class LearningRateSchedule(Part, frozen=True, kw_only=True):
    """A factor on the learning rate for each round."""

    warmup: Annotated[int, msgspec.Meta(ge=0), doc("Rounds over which the factor rises linearly to 1.")] = 0

    def lr_factor(self, round: int) -> float:
        if round < self.warmup:
            return (round + 1) / self.warmup
        return self.factor_after_warmup(round)

    def factor_after_warmup(self, round: int) -> float:
        raise NotImplementedError


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
