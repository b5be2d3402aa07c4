"""What a device does with its mini-batches: take one gradient, or train for a while and send the difference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from torch import Tensor

from potluck.model.replica import Replica
from potluck.settings import Part

__all__ = ["Gradient", "Local", "LocalSgd", "Trained"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]
Batch = tuple[Tensor, Tensor]


class Trained(NamedTuple):
    """What came of it: a direction to go down from the model that was pulled, and the change of the buffers."""

    params: Tensor
    buffers: Tensor
    samples: int
    loss: float


class Local(Part, frozen=True, kw_only=True):
    """A device's share of a round."""

    def passes(self, per_epoch: int) -> int | None:
        """How many mini-batches it takes, `per_epoch` being once through the data; None: the next of its sequence."""
        raise NotImplementedError

    def train(
        self, replica: Replica, batches: Iterable[Batch], draws: np.random.Generator | None, lr: float
    ) -> Trained:
        """Train the replica; `lr` scales the settings' own learning rate (a schedule's factor)."""
        raise NotImplementedError


class Gradient(Local, frozen=True, kw_only=True, tag="gradient"):
    """One mini-batch, one gradient: synchronous SGD."""

    def passes(self, per_epoch: int) -> int | None:
        return None

    def train(
        self, replica: Replica, batches: Iterable[Batch], draws: np.random.Generator | None, lr: float
    ) -> Trained:
        ((inputs, targets),) = batches
        before = replica.state_buffers()
        gradient, loss = replica.gradient(inputs, targets, draws)
        return Trained(gradient.clone(), replica.buffers_since(before), len(targets), loss)


class LocalSgd(Local, frozen=True, kw_only=True, tag="sgd"):
    """SGD for `epochs` over the device's data, or for `steps` mini-batches: federated averaging."""

    epochs: Annotated[int, msgspec.Meta(ge=1)] = 1
    steps: Annotated[int, msgspec.Meta(ge=1)] | None = None
    lr: Positive = 0.05
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0
    weight_decay: NonNegative = 0.0

    def passes(self, per_epoch: int) -> int | None:
        return self.steps if self.steps is not None else self.epochs * per_epoch

    def correct(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """A place for variants to bend the gradient; `anchor` is the model that was pulled."""
        return gradient

    def train(
        self, replica: Replica, batches: Iterable[Batch], draws: np.random.Generator | None, lr: float
    ) -> Trained:
        weights = replica.numbers.params
        anchor, before = replica.anchor(), replica.state_buffers()
        velocity: Tensor | None = None
        losses, samples = 0.0, 0
        for inputs, targets in batches:
            gradient, loss = replica.gradient(inputs, targets, draws)
            losses, samples = losses + loss * len(targets), samples + len(targets)
            velocity = self._step(weights, self.correct(gradient, weights, anchor), velocity, lr)
        return Trained(anchor - weights, replica.buffers_since(before), samples, losses / max(samples, 1))

    def _step(self, weights: Tensor, gradient: Tensor, velocity: Tensor | None, lr: float) -> Tensor | None:
        """One step as torch.optim.SGD takes it."""
        if self.weight_decay:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        if self.momentum:
            velocity = gradient.clone() if velocity is None else velocity.mul_(self.momentum).add_(gradient)
            gradient = velocity
        weights.add_(gradient, alpha=-self.lr * lr)
        return velocity
