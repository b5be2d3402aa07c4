"""The optimizers of the coordinator and of pipelines: torch's own, on one flat vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor, nn

from potluck.model.torch_optimizers import OptimizerScope, build_by_name, check_optimizer_options, probe_once
from potluck.settings import Part, doc

__all__ = ["Adam", "AdamW", "Optimizer", "Sgd", "TorchOptimizer"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Fraction = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class Optimizer(Part, frozen=True, kw_only=True):
    """Applies a merged update or gradient to the weights."""

    lr: Annotated[Positive, doc("Learning rate.")] = 1.0

    @property
    def has_momentum(self) -> bool:
        """Whether a step continues in the direction of earlier ones."""
        raise NotImplementedError

    @property
    def has_state(self) -> bool:
        """Whether it remembers anything from one step to the next."""
        return True

    @property
    def predicts_steps(self) -> bool:
        """Whether `predicted_step` can ever tell."""
        return self.has_state

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

    @property
    def has_momentum(self) -> bool:
        return self.momentum > 0

    @property
    def has_state(self) -> bool:
        return self.momentum > 0

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

    @property
    def has_momentum(self) -> bool:
        return self.beta1 > 0

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


class AdamW(Adam, frozen=True, kw_only=True, tag="adamw"):
    """Adam with decoupled weight decay."""

    weight_decay: Annotated[NonNegative, doc("Weight decay, which is not part of the gradient.")] = 0.01

    def build_optimizer(self, params: Tensor) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [nn.Parameter(params)],
            lr=self.lr, betas=(self.beta1, self.beta2), eps=self.epsilon, weight_decay=self.weight_decay,
        )  # fmt: skip


class TorchOptimizer(Optimizer, frozen=True, kw_only=True, tag="optimizer"):
    """Any optimizer with torch.optim's interface that treats every weight alone."""

    name: Annotated[str, doc("Its class: `torch.optim.RMSprop`, or `package.module:Class` for your own.")]
    lr: Positive = 0.001
    options: Annotated[dict[str, Any], doc("Its other arguments, as in `{momentum = 0.9}`.")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        check_optimizer_options(self.name, self.lr, self.options)
        traits = probe_once(str(self), lambda params: build_by_name(self.name, params, self.lr, self.options))
        if traits.scope is not OptimizerScope.WEIGHT:
            raise ValueError(f"{self.name} looks at whole tensors, but the weights are one vector here; choose another")
        if traits.has_numbers:
            raise ValueError(f"{self.name} keeps plain numbers in its state, not tensors; choose another")
        if not traits.starts_at_zero:
            raise ValueError(f"{self.name} does not start from a state of zeros; choose another")

    @property
    def has_momentum(self) -> bool:
        return bool(self.options.get("momentum"))

    def build_optimizer(self, params: Tensor) -> torch.optim.Optimizer:
        return build_by_name(self.name, [nn.Parameter(params)], self.lr, self.options)

    @property
    def predicts_steps(self) -> bool:
        return False

    def predicted_step(self, moments: Mapping[str, Tensor]) -> Tensor | None:
        return None
