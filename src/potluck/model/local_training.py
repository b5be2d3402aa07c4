"""What a device does with its mini-batches: compute one gradient, or train for a while and send the difference.

A solver (`local_solvers.py`, `optimizer_solvers.py`) carries one turn through its mini-batches. Its last step may be
taken layer by layer as gradients become ready, so that the update of one layer can be sent while the next is still
being computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from torch import Tensor

from potluck.model.local_solvers import AccumulatingSolver, LocalSolver, MeanGradientSolver, SgdSolver
from potluck.model.model_replica import ModelReplica
from potluck.model.optimizer_solvers import FlatOptimizerSolver, TensorOptimizerSolver
from potluck.model.optimizers import Fraction, NonNegative, Positive
from potluck.model.torch_optimizers import (
    OptimizerScope,
    OptimizerTraits,
    build_by_name,
    check_optimizer_options,
    probe_once,
)
from potluck.settings import Part, doc

__all__ = [
    "GradientTraining",
    "LocalAdam",
    "LocalAdamW",
    "LocalOptimizer",
    "LocalSgd",
    "LocalSolver",
    "LocalSteps",
    "LocalTraining",
    "Proximal",
]

Precision = Literal["float32", "bfloat16", "float16"]
StatePolicy = Literal["reset", "keep", "average"]


class LocalTraining(Part, frozen=True, kw_only=True):
    """What a device computes in its turn."""

    has_learning_rate: ClassVar[bool] = True
    turn_length_keys: ClassVar[tuple[str, ...]] = ()  # keys that have no effect where samples stream in

    precision: Annotated[
        Precision,
        doc("Number format of forward and backward passes (autocast); weights and updates stay in the model's own."),
    ] = "float32"

    def batches_per_turn(self, per_epoch: int) -> int | None:
        """The mini-batches of a turn, given those of an epoch; None to continue the device's batch sequence."""
        raise NotImplementedError

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        """A solver for the replica; `lr` is the schedule's factor on the settings' learning rate."""
        raise NotImplementedError

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype that operations are cast to; None where they are not."""
        dtype: torch.dtype = getattr(torch, self.precision)
        return None if dtype == torch.float32 else dtype


class GradientTraining(LocalTraining, frozen=True, kw_only=True, tag="gradient"):
    """The mean gradient of the turn's samples (synchronous SGD)."""

    has_learning_rate: ClassVar[bool] = False

    clip_norm: Annotated[
        Positive | None, doc("Largest norm of a device's gradient; a longer one is scaled down to it.")
    ] = None

    def batches_per_turn(self, per_epoch: int) -> int | None:
        return None

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return MeanGradientSolver(replica, self.clip_norm)


class LocalSteps(LocalTraining, frozen=True, kw_only=True):
    """Several steps of an optimizer; the device sends the difference of the weights.

    What becomes of the optimizer's state (momentum and the like) after a turn is `state`:

    - `reset`, the default: every turn starts without one, as in federated averaging. It needs no memory between turns
      and fits every other part. The moments of a device that is rarely invited are those of an old model, and those of
      a device with classes of its own are not the fleet's: keeping them then costs accuracy.
    - `keep`: a device continues with its own, so that one device trains as a plain loop does. It is saved with every
      checkpoint and lost when the device restarts. It takes as much memory on a device as in plain training; a
      simulation holds that of all devices.
    - `average`: the coordinator merges it like the updates and sends it with the model; its bytes are charged.
    """

    turn_length_keys: ClassVar[tuple[str, ...]] = ("epochs", "steps")

    epochs: Annotated[int, msgspec.Meta(ge=1), doc("Passes over the device's samples in one turn.")] = 1
    steps: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None, doc("Mini-batches in one turn; overrides `epochs`.")
    ] = None
    lr: Annotated[Positive, doc("Learning rate.")] = 0.05
    clip_norm: Annotated[Positive | None, doc("Largest norm of a step's gradient; a longer one is scaled down.")] = None
    accumulate: Annotated[
        int, msgspec.Meta(ge=1), doc("Mini-batches whose mean gradient makes one step; the last step may have fewer.")
    ] = 1
    state: Annotated[
        StatePolicy,
        doc("Optimizer state after a turn: start again, keep each device's own, or average all like the updates."),
    ] = "reset"

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.steps is None else {"epochs": "beside `steps`"}

    def batches_per_turn(self, per_epoch: int) -> int | None:
        return self.steps if self.steps is not None else self.epochs * per_epoch

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        """A hook for variants that correct the gradient; `anchor` is the model that was pulled."""
        return gradient

    @property
    def corrects_gradient(self) -> bool:
        return type(self).correct_gradient is not LocalSteps.correct_gradient

    def build_optimizer(self, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        """The optimizer in torch, at this learning rate."""
        raise NotImplementedError

    @property
    def traits(self) -> OptimizerTraits:
        """What the optimizer may be used for, found out by trying it."""
        return probe_once(f"{type(self)} {self}", lambda params: self.build_optimizer(params, self.lr))

    def new_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        solver = self.new_step_solver(replica, self.lr * lr)
        return solver if self.accumulate == 1 else AccumulatingSolver(solver, replica, self.accumulate)

    def new_step_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        """A solver that takes a step with every gradient, at this learning rate."""
        by_weight = self.traits.scope is OptimizerScope.WEIGHT
        solver = FlatOptimizerSolver if by_weight else TensorOptimizerSolver
        return solver(self, replica, lambda params: self.build_optimizer(params, lr))


class LocalSgd(LocalSteps, frozen=True, kw_only=True, tag="sgd"):
    """Several steps of SGD; the device sends the difference of the weights (federated averaging)."""

    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0), doc("Momentum.")] = 0.0
    weight_decay: Annotated[NonNegative, doc("Weight decay (L2).")] = 0.0
    nesterov: Annotated[bool, doc("Use Nesterov's momentum.")] = False

    def __post_init__(self) -> None:
        if not self.momentum:
            for key in ("nesterov",) if self.nesterov else ("state",) if self.state != "reset" else ():
                raise ValueError(f"`{key}` needs a `momentum` above 0; without it SGD has no state")

    def build_optimizer(self, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            params, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )

    def new_step_solver(self, replica: ModelReplica, lr: float) -> LocalSolver:
        return SgdSolver(self, replica, lr)


class Proximal(LocalSgd, frozen=True, kw_only=True, tag="proximal"):
    """Local SGD on the loss plus mu/2 · ‖w − w₀‖², with w₀ the pulled weights (FedProx)."""

    mu: Annotated[
        float, msgspec.Meta(ge=0.0), doc("Strength of the pull towards the weights that the turn started from.")
    ] = 0.01

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        return gradient.add(weights - anchor, alpha=self.mu)


class LocalAdam(LocalSteps, frozen=True, kw_only=True, tag="adam"):
    """Several steps of Adam on the device."""

    lr: Positive = 0.001
    beta1: Annotated[Fraction, doc("Decay of the mean of gradients.")] = 0.9
    beta2: Annotated[Fraction, doc("Decay of the mean of squared gradients.")] = 0.999
    epsilon: Annotated[Positive, doc("Added to the denominator.")] = 1e-8
    weight_decay: Annotated[NonNegative, doc("Weight decay (L2).")] = 0.0

    def build_optimizer(self, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.Adam(params, lr=lr, betas=betas, eps=self.epsilon, weight_decay=self.weight_decay)


class LocalAdamW(LocalAdam, frozen=True, kw_only=True, tag="adamw"):
    """Several steps of AdamW on the device: Adam with decoupled weight decay."""

    weight_decay: Annotated[NonNegative, doc("Weight decay, which is not part of the gradient.")] = 0.01

    def build_optimizer(self, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(params, lr=lr, betas=betas, eps=self.epsilon, weight_decay=self.weight_decay)


class LocalOptimizer(LocalSteps, frozen=True, kw_only=True, tag="optimizer"):
    """Several steps of any optimizer with torch.optim's interface whose step needs no closure."""

    name: Annotated[str, doc("Its class: `torch.optim.RMSprop`, or `package.module:Class` for your own.")]
    lr: Positive = 0.001
    options: Annotated[dict[str, Any], doc("Its other arguments, as in `{momentum = 0.9}`.")] = msgspec.field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        check_optimizer_options(self.name, self.lr, self.options)
        _ = self.traits

    def build_optimizer(self, params: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        return build_by_name(self.name, params, lr, self.options)
