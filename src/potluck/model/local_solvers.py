"""How a device's weights are stepped in one turn: the interface, the mean gradient, SGD, and accumulated gradients.

Torch's own optimizers are in `optimizer_solvers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from potluck.model.model_replica import ModelReplica
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import ExtractedSubmodel

__all__ = [
    "ALL_ENTRIES",
    "AccumulatingSolver",
    "LocalSolver",
    "MeanGradientSolver",
    "SgdSolver",
    "SolverState",
    "StepSettings",
    "SteppingSolver",
]

ALL_ENTRIES = slice(None)
SolverState = Mapping[str, Tensor]


class LocalSolver:
    """Trains for one turn; its update is what the server subtracts from the model that was pulled."""

    def load_state(self, state: SolverState) -> None:
        """Continue from the state of an earlier turn; called before `start`."""

    def start(self) -> None:
        """Called once the model is loaded."""

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        """Apply the gradient of a mini-batch with this `fraction` of the turn's samples, to these entries only."""
        raise NotImplementedError

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        """The same for a sub-model extracted from the replica."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called after the last mini-batch, unless its step was taken layer by layer."""

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        """The turn's update of these entries."""
        raise NotImplementedError

    def save_state(self) -> SolverState:
        """The state from which a later turn can continue; empty if there is none."""
        return {}


class StepSettings(Protocol):
    """What solvers that take steps ask of their settings."""

    @property
    def clip_norm(self) -> float | None: ...

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor: ...

    @property
    def corrects_gradient(self) -> bool: ...


class MeanGradientSolver(LocalSolver):
    """The mean over mini-batches, weighted by their fractions; a single one is returned bit for bit."""

    def __init__(self, replica: ModelReplica, clip_norm: float | None) -> None:
        self._mean = torch.zeros_like(replica.state.params)
        self._layout = replica.layout
        self._clip_norm = clip_norm

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        if fraction == 1.0:
            self._mean[entries] = gradient[entries]
        else:
            self._mean[entries] += fraction * gradient[entries]

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        submodel.scatter(submodel.gather(self._mean).add(gradient, alpha=fraction), self._mean)

    def finish(self) -> None:
        if self._clip_norm is not None:
            self._mean = clip_gradient(self._mean, self._layout, self._clip_norm)

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        return self._mean[entries]


class SteppingSolver(LocalSolver):
    """Corrects and clips each gradient, then lets a subclass step the weights by it."""

    def __init__(self, settings: StepSettings, replica: ModelReplica) -> None:
        self._settings = settings
        self._replica = replica
        self._weights = replica.state.params
        self._anchor: Tensor

    def start(self) -> None:
        self._anchor = self._replica.copy_anchor()

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        settings = self._settings
        direction = settings.correct_gradient(gradient[entries], self._weights[entries], self._anchor[entries])
        if settings.clip_norm is not None:
            assert entries == ALL_ENTRIES, "the norm of a slice is not that of the gradient"
            direction = clip_gradient(direction, self._replica.layout, settings.clip_norm)
        self._step_entries(direction, entries)

    def step_submodel(self, submodel: ExtractedSubmodel, gradient: Tensor, fraction: float) -> None:
        settings, weights = self._settings, submodel.replica.state.params
        anchor = submodel.gather(self._anchor) if settings.corrects_gradient else weights
        direction = settings.correct_gradient(gradient, weights, anchor)
        if settings.clip_norm is not None:
            direction = clip_gradient(direction, submodel.replica.layout, settings.clip_norm)
        self._step_gathered(submodel, direction)

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        return self._anchor[entries] - self._weights[entries]

    def _step_entries(self, direction: Tensor, entries: slice) -> None:
        raise NotImplementedError

    def _step_gathered(self, submodel: ExtractedSubmodel, direction: Tensor) -> None:
        raise NotImplementedError


class SgdSettings(StepSettings, Protocol):
    """The settings of SGD."""

    @property
    def momentum(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def nesterov(self) -> bool: ...


class SgdSolver(SteppingSolver):
    """Steps like torch.optim.SGD, at less cost; entries that a step leaves out keep their value and momentum."""

    def __init__(self, settings: SgdSettings, replica: ModelReplica, lr: float) -> None:
        super().__init__(settings, replica)
        self._options = settings
        self._rate = lr
        self._velocity: Tensor | None = None

    def load_state(self, state: SolverState) -> None:
        if "momentum_buffer" in state:
            self._velocity = state["momentum_buffer"].clone()

    def save_state(self) -> SolverState:
        return {} if self._velocity is None else {"momentum_buffer": self._velocity}

    def _step_entries(self, direction: Tensor, entries: slice) -> None:
        velocity = self._momentum_vector()[entries] if self._options.momentum else None
        self._apply_step(self._weights[entries], direction, velocity)

    def _step_gathered(self, submodel: ExtractedSubmodel, direction: Tensor) -> None:
        velocity = submodel.gather(self._momentum_vector()) if self._options.momentum else None
        self._apply_step(submodel.replica.state.params, direction, velocity)
        if velocity is not None:
            submodel.scatter(velocity, self._momentum_vector())

    def _apply_step(self, weights: Tensor, direction: Tensor, velocity: Tensor | None) -> None:
        options = self._options
        if options.weight_decay:
            direction = direction.add(weights, alpha=options.weight_decay)
        if velocity is not None:
            velocity.mul_(options.momentum).add_(direction)
            direction = direction.add(velocity, alpha=options.momentum) if options.nesterov else velocity
        weights.add_(direction, alpha=-self._rate)

    def _momentum_vector(self) -> Tensor:
        if self._velocity is None:
            self._velocity = torch.zeros_like(self._weights)
        return self._velocity


class AccumulatingSolver(LocalSolver):
    """Hands the mean gradient of several mini-batches, weighted by their samples, to another solver as one."""

    def __init__(self, solver: LocalSolver, replica: ModelReplica, count: int) -> None:
        self._solver = solver
        self._sum = torch.zeros_like(replica.state.params)
        self._count = count
        self._pending = 0
        self._fraction = 0.0

    def load_state(self, state: SolverState) -> None:
        self._solver.load_state(state)

    def start(self) -> None:
        self._solver.start()

    def step(self, gradient: Tensor, fraction: float, entries: slice = ALL_ENTRIES) -> None:
        if entries != ALL_ENTRIES:  # of the last mini-batch, which always steps
            total = self._fraction + fraction
            self._sum[entries] = self._sum[entries].add(gradient[entries], alpha=fraction).div_(total)
            self._solver.step(self._sum, total, entries)
            return
        self._sum.add_(gradient, alpha=fraction)
        self._fraction += fraction
        self._pending += 1
        if self._pending == self._count:
            self._step_accumulated()

    def finish(self) -> None:
        if self._pending:
            self._step_accumulated()
        self._solver.finish()

    def update(self, entries: slice = ALL_ENTRIES) -> Tensor:
        return self._solver.update(entries)

    def save_state(self) -> SolverState:
        return self._solver.save_state()

    def _step_accumulated(self) -> None:
        self._solver.step(self._sum.div_(self._fraction), self._fraction)
        self._sum.zero_()
        self._pending, self._fraction = 0, 0.0


def clip_gradient(gradient: Tensor, layout: WeightLayout, norm: float) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_ over the model's parameters, bit for bit."""
    views = [gradient[entry.start : entry.stop].view(entry.shape) for entry in layout.params]
    total = nn.utils.get_total_norm(views)
    return gradient * torch.clamp(norm / (total + 1e-6), max=1.0)
