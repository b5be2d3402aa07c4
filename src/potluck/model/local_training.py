"""What a device does with its mini-batches: take one gradient, or train for a while and send the difference.

A Walk is one turn's way through the mini-batches. Its last step may be taken layer by layer, as gradients get ready,
so that the update of one layer can leave while the next is still being worked out.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from torch import Tensor

from potluck.model.model_replica import ModelReplica
from potluck.model.submodel_interface import ExtractedSubmodel
from potluck.settings import Part, doc

__all__ = ["GradientTraining", "LocalSgd", "LocalSolver", "LocalTraining"]

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]

WHOLE = slice(None)


class LocalSolver:
    """One turn's way; the direction to go down from the model that was pulled comes out of it."""

    def start(self) -> None:
        """The model is loaded."""

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        """Take a mini-batch's gradient, which stands for `share` of the turn's samples; of some entries only, if so."""
        raise NotImplementedError

    def step_submodel(self, loan: ExtractedSubmodel, gradient: Tensor, share: float) -> None:
        """The same for a part of the model on loan."""
        raise NotImplementedError

    def update(self, entries: slice = WHOLE) -> Tensor:
        """What came of it, of some entries."""
        raise NotImplementedError


class LocalTraining(Part, frozen=True, kw_only=True):
    """What a device computes in its turn."""

    def batches_per_turn(self, per_epoch: int) -> int | None:
        """How many mini-batches it takes, `per_epoch` being once through the data; None: the next of its sequence."""
        raise NotImplementedError

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        """Set out to train the replica; `lr` scales the settings' own learning rate (a schedule's factor)."""
        raise NotImplementedError


class GradientTraining(LocalTraining, frozen=True, kw_only=True, tag="gradient"):
    """The mean gradient of the turn's samples (synchronous SGD)."""

    def batches_per_turn(self, per_epoch: int) -> int | None:
        return None

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return _MeanGradientSolver(replica)


class _MeanGradientSolver(LocalSolver):
    """The mean over mini-batches, each by its share; one alone comes out bit for bit."""

    def __init__(self, replica: ModelReplica) -> None:
        self._mean = torch.zeros_like(replica.state.params)

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        if share == 1.0:
            self._mean[entries] = gradient[entries]
        else:
            self._mean[entries] += share * gradient[entries]

    def step_submodel(self, loan: ExtractedSubmodel, gradient: Tensor, share: float) -> None:
        loan.scatter(loan.gather(self._mean).add(gradient, alpha=share), self._mean)

    def update(self, entries: slice = WHOLE) -> Tensor:
        return self._mean[entries]


class LocalSgd(LocalTraining, frozen=True, kw_only=True, tag="sgd"):
    """Several steps of SGD; the device sends the difference of the weights (federated averaging)."""

    epochs: Annotated[int, msgspec.Meta(ge=1), doc("Passes over the device's samples in one turn.")] = 1
    steps: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, doc("Mini-batches in one turn; overrides `epochs`.")
    ] = None
    lr: Annotated[Positive, doc("Learning rate.")] = 0.05
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0), doc("Momentum, which starts at zero in every turn.")] = 0.0
    weight_decay: Annotated[NonNegative, doc("Weight decay (L2).")] = 0.0

    def batches_per_turn(self, per_epoch: int) -> int | None:
        return self.steps if self.steps is not None else self.epochs * per_epoch

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """A place for variants to bend the gradient; `anchor` is the model that was pulled."""
        return gradient

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return _SgdSolver(self, replica, lr)


class _SgdSolver(LocalSolver):
    """Steps as torch.optim.SGD takes them; entries that a step leaves out stay as they are, momentum included."""

    def __init__(self, settings: LocalSgd, replica: ModelReplica, lr: float) -> None:
        self._settings = settings
        self._replica = replica
        self._rate = settings.lr * lr
        self._weights = replica.state.params
        self._anchor: Tensor
        self._velocity: Tensor | None = None

    def start(self) -> None:
        self._anchor = self._replica.copy_anchor()

    def step(self, gradient: Tensor, share: float, entries: slice = WHOLE) -> None:
        velocity = self._momentum_vector()[entries] if self._settings.momentum else None
        self._apply_step(self._weights[entries], gradient[entries], self._anchor[entries], velocity)

    def step_submodel(self, loan: ExtractedSubmodel, gradient: Tensor, share: float) -> None:
        settings, whole = self._settings, loan.replica.state.params
        bends = type(settings).correct_gradient is not LocalSgd.correct_gradient
        anchor = loan.gather(self._anchor) if bends else whole
        velocity = loan.gather(self._momentum_vector()) if settings.momentum else None
        self._apply_step(whole, gradient, anchor, velocity)
        if velocity is not None:
            loan.scatter(velocity, self._momentum_vector())

    def _apply_step(self, weights: Tensor, gradient: Tensor, anchor: Tensor, velocity: Tensor | None) -> None:
        settings = self._settings
        direction = settings.correct_gradient(gradient, weights, anchor)
        if settings.weight_decay:
            direction = direction.add(weights, alpha=settings.weight_decay)
        if velocity is not None:
            direction = velocity.mul_(settings.momentum).add_(direction)
        weights.add_(direction, alpha=-self._rate)

    def _momentum_vector(self) -> Tensor:
        if self._velocity is None:
            self._velocity = torch.zeros_like(self._weights)
        return self._velocity

    def update(self, entries: slice = WHOLE) -> Tensor:
        return self._anchor[entries] - self._weights[entries]
