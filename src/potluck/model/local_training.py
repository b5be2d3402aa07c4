"""What a device does with its mini-batches: compute one gradient, or train for a while and send the difference.

A solver carries one turn through its mini-batches. Its last step may be taken layer by layer as gradients become
ready, so that the update of one layer can be sent while the next is still being computed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from torch import Tensor

from potluck.model.model_replica import ModelReplica
from potluck.model.optimizers import NonNegative, Positive
from potluck.model.submodel_interface import ExtractedSubmodel
from potluck.settings import Part, doc

__all__ = ["GradientTraining", "LocalSgd", "LocalSolver", "LocalTraining", "Proximal"]


ALL_ENTRIES = slice(None)


class LocalSolver:
    """Trains for one turn; its update is what the server subtracts from the model that was pulled."""

    def start(self) -> None:
        """Called once the model is loaded."""

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        """Apply the gradient of a mini-batch with this `fraction` of the turn's samples, to these entries only."""
        raise NotImplementedError

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        """The same for a sub-model extracted from the replica."""
        raise NotImplementedError

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        """The turn's update of these entries."""
        raise NotImplementedError


class LocalTraining(Part, frozen=True, kw_only=True):
    """What a device computes in its turn."""

    def batches_per_turn(self, per_epoch: int) -> int | None:
        """The mini-batches of a turn, given those of an epoch; None to continue the device's batch sequence."""
        raise NotImplementedError

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        """A solver for the replica; `lr` is the schedule's factor on the settings' learning rate."""
        raise NotImplementedError


class GradientTraining(LocalTraining, frozen=True, kw_only=True, tag="gradient"):
    """The mean gradient of the turn's samples (synchronous SGD)."""

    def batches_per_turn(self, per_epoch: int) -> int | None:
        return None

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return _MeanGradientSolver(replica)


class _MeanGradientSolver(LocalSolver):
    """The mean over mini-batches, weighted by their fractions; a single one is returned bit for bit."""

    def __init__(self, replica: ModelReplica) -> None:
        self._mean = torch.zeros_like(replica.state.params)

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        if fraction == 1.0:
            self._mean[entries] = gradient[entries]
        else:
            self._mean[entries] += fraction * gradient[entries]

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        submodel.scatter(submodel.gather(self._mean).add(gradient, alpha=fraction), self._mean)

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
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
        """A hook for variants that correct the gradient; `anchor` is the model that was pulled."""
        return gradient

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return _SgdSolver(self, replica, lr)


class _SgdSolver(LocalSolver):
    """Steps like torch.optim.SGD; entries that a step leaves out keep their value and momentum."""

    def __init__(self, settings: LocalSgd, replica: ModelReplica, lr: float) -> None:
        self._settings = settings
        self._replica = replica
        self._rate = settings.lr * lr
        self._weights = replica.state.params
        self._anchor: Tensor
        self._velocity: Tensor | None = None

    def start(self) -> None:
        self._anchor = self._replica.copy_anchor()

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        velocity = self._momentum_vector()[entries] if self._settings.momentum else None
        self._apply_step(self._weights[entries], gradient[entries], self._anchor[entries], velocity)

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        settings, weights = self._settings, submodel.replica.state.params
        corrects = type(settings).correct_gradient is not LocalSgd.correct_gradient
        anchor = submodel.gather(self._anchor) if corrects else weights
        velocity = submodel.gather(self._momentum_vector()) if settings.momentum else None
        self._apply_step(weights, gradient, anchor, velocity)
        if velocity is not None:
            submodel.scatter(velocity, self._momentum_vector())

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

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        return self._anchor[entries] - self._weights[entries]


class Proximal(LocalSgd, frozen=True, kw_only=True, tag="proximal"):
    """Local SGD on the loss plus mu/2 · ‖w − w₀‖², with w₀ the pulled weights (FedProx)."""

    mu: Annotated[
        float, msgspec.Meta(ge=0.0), doc("Strength of the pull towards the weights that the turn started from.")
    ] = 0.01

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        return gradient.add(weights - anchor, alpha=self.mu)
