"""Refuses local training that does not fit the other parts of a job, the model, or the machine; before the run."""

from __future__ import annotations

import torch

from potluck.errors import SettingError
from potluck.loops.settings import Rounds
from potluck.model.autocast_probe import autocast_refusal
from potluck.model.local_training import GradientTraining, LocalSteps
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.torch_optimizers import OptimizerScope

__all__ = ["check_local_training", "check_precision"]

_SEQUENTIAL = 'set rounds.transfer to "sequential"'


def check_local_training(rounds: Rounds, layout: WeightLayout, extractor: SubmodelExtractor | None) -> None:
    """Check the settings of `[rounds.local]` against the other parts and the model."""
    local, cut = rounds.local, rounds.transfer.strategy != "sequential"
    if isinstance(local, GradientTraining | LocalSteps) and local.clip_norm is not None and cut:
        raise SettingError(
            "rounds.local.clip_norm", f"the norm is known when no layer is left to hide a transfer; {_SEQUENTIAL}"
        )
    if local.precision != "float32" and layout.dtype != torch.float32:
        raise SettingError("rounds.local.precision", f"is for float32 models, and this one is {layout.dtype}")
    if local.precision == "float16" and cut:
        raise SettingError("rounds.local.precision", f"float16 may have to repeat the backward pass; {_SEQUENTIAL}")
    if isinstance(local, LocalSteps):
        _check_optimizer(local, rounds, layout, extractor)
        _check_state_policy(local, rounds, extractor)


def check_precision(precision: str, device: str) -> None:
    """Check that this machine, which trains as `device`, can compute in a precision."""
    reason = None if precision == "float32" else autocast_refusal(precision)
    if reason is not None:
        raise SettingError("rounds.local.precision", f"{precision} does not work on {device}: {reason}; use float32")


def _check_optimizer(
    local: LocalSteps, rounds: Rounds, layout: WeightLayout, extractor: SubmodelExtractor | None
) -> None:
    extracts = extractor is not None and extractor.extracts_from_replica
    if local.accumulate > 1 and extracts:
        raise SettingError(
            "rounds.local.accumulate", "every mini-batch trains its own sub-model, so gradients do not add up; use 1"
        )
    scope = local.traits.scope
    if scope is OptimizerScope.WEIGHT:
        return
    cut = rounds.transfer.strategy != "sequential"
    if extracts:
        raise SettingError(
            "rounds.local.name", "needs whole tensors, of which sub-models have parts only; use sgd, adam or adamw"
        )
    if cut and (layout.splits or scope is OptimizerScope.MODEL):
        raise SettingError(
            "rounds.local.name",
            f"needs whole tensors or the whole model, and transfers are cut; use adamw, or {_SEQUENTIAL}",
        )
    try:
        local.build_optimizer([torch.nn.Parameter(torch.empty(entry.shape)) for entry in layout.params], local.lr)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError("rounds.local.name", f"refuses this model's parameters: {reason}") from None


def _check_state_policy(local: LocalSteps, rounds: Rounds, extractor: SubmodelExtractor | None) -> None:
    if local.state != "reset" and not local.traits.moments and not local.traits.has_numbers:
        raise SettingError("rounds.local.state", 'this optimizer has no state with these options; set it to "reset"')
    keep_problem = None
    if extractor is not None and rounds.submodel.chooses_per_round:
        keep_problem = "sub-models change every round"
    elif rounds.transfer.drafts_next_round:
        keep_problem = "with duplex transfers a turn begins before the last one is accepted"
    if local.state == "keep" and keep_problem is not None:
        raise SettingError("rounds.local.state", f'"keep" does not work here: {keep_problem}; set it to "reset"')
    if local.state == "average":
        traits, problem = local.traits, None
        if extractor is not None:
            problem = "devices train different sub-models"
        elif rounds.transfer.strategy != "sequential":
            problem = f"transfers are cut ({_SEQUENTIAL})"
        elif rounds.barrier.carries_over:
            problem = "updates start from different versions of the model"
        elif traits.scope is not OptimizerScope.WEIGHT or traits.has_numbers or not traits.starts_at_zero:
            problem = "the state of this optimizer does not consist of vectors that start at zero"
        if problem is not None:
            works = "reset" if keep_problem is not None else "keep"
            raise SettingError("rounds.local.state", f'"average" does not work here: {problem}; or set it to "{works}"')
