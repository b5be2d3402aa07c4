"""What a device does with its mini-batches: take one gradient, or train for a while and send the difference.

A Walk is one turn's way through the mini-batches. Its last step may be taken layer by layer, as gradients get ready,
so that the update of one layer can leave while the next is still being worked out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from torch import Tensor

from potluck.model.carving import Loan
from potluck.model.replica import Replica
from potluck.settings import Part

__all__ = ["Gradient", "Local", "LocalSgd", "Walk"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]

WHOLE = slice(None)


class Walk:
    """One turn's way; the direction to go down from the model that was pulled comes out of it."""

    def start(self) -> None:
        """The model is loaded."""

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        """Take a mini-batch's gradient, which stands for `share` of the turn's samples; of some entries only, if so."""
        raise NotImplementedError

    def step_on(self, loan: Loan, gradient: Tensor, share: float) -> None:
        """The same for a part of the model on loan."""
        raise NotImplementedError

    def update(self, entries: slice = WHOLE) -> Tensor:
        """What came of it, of some entries."""
        raise NotImplementedError


class Local(Part, frozen=True, kw_only=True):
    """A device's share of a round."""

    def passes(self, per_epoch: int) -> int | None:
        """How many mini-batches it takes, `per_epoch` being once through the data; None: the next of its sequence."""
        raise NotImplementedError

    def begin(self, replica: Replica, lr: float) -> Walk:
        """Set out to train the replica; `lr` scales the settings' own learning rate (a schedule's factor)."""
        raise NotImplementedError


class Gradient(Local, frozen=True, kw_only=True, tag="gradient"):
    """The mean gradient of the turn's samples: synchronous SGD."""

    def passes(self, per_epoch: int) -> int | None:
        return None

    def begin(self, replica: Replica, lr: float) -> Walk:
        return _Mean(replica)


class _Mean(Walk):
    """The mean over mini-batches, each by its share; one alone comes out bit for bit."""

    def __init__(self, replica: Replica) -> None:
        self._mean = torch.zeros_like(replica.numbers.params)

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        if share == 1.0:
            self._mean[entries] = gradient[entries]
        else:
            self._mean[entries] += share * gradient[entries]

    def step_on(self, loan: Loan, gradient: Tensor, share: float) -> None:
        loan.scatter(loan.gather(self._mean).add(gradient, alpha=share), self._mean)

    def update(self, entries: slice = WHOLE) -> Tensor:
        return self._mean[entries]


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

    def begin(self, replica: Replica, lr: float) -> Walk:
        return _Descent(self, replica, lr)


class _Descent(Walk):
    """Steps as torch.optim.SGD takes them; entries that a step leaves out stay as they are, momentum included."""

    def __init__(self, settings: LocalSgd, replica: Replica, lr: float) -> None:
        self._settings = settings
        self._replica = replica
        self._rate = settings.lr * lr
        self._weights = replica.numbers.params
        self._anchor: Tensor
        self._velocity: Tensor | None = None

    def start(self) -> None:
        self._anchor = self._replica.anchor()

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        velocity = self._moving()[entries] if self._settings.momentum else None
        self._descend(self._weights[entries], gradient[entries], self._anchor[entries], velocity)

    def step_on(self, loan: Loan, gradient: Tensor, share: float) -> None:
        settings, whole = self._settings, loan.replica.numbers.params
        bends = type(settings).correct is not LocalSgd.correct
        anchor = loan.gather(self._anchor) if bends else whole
        velocity = loan.gather(self._moving()) if settings.momentum else None
        self._descend(whole, gradient, anchor, velocity)
        if velocity is not None:
            loan.scatter(velocity, self._moving())

    def _descend(self, weights: Tensor, gradient: Tensor, anchor: Tensor, velocity: Tensor | None) -> None:
        settings = self._settings
        direction = settings.correct(gradient, weights, anchor)
        if settings.weight_decay:
            direction = direction.add(weights, alpha=settings.weight_decay)
        if velocity is not None:
            direction = velocity.mul_(settings.momentum).add_(direction)
        weights.add_(direction, alpha=-self._rate)

    def _moving(self) -> Tensor:
        if self._velocity is None:
            self._velocity = torch.zeros_like(self._weights)
        return self._velocity

    def update(self, entries: slice = WHOLE) -> Tensor:
        return self._anchor[entries] - self._weights[entries]
