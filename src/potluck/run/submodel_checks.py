"""Tries the smallest sub-model before a run, so that a model that cannot be cut is refused at once, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from potluck.errors import SettingError
from potluck.loops.backends import DeviceBackend, TurnIdentity
from potluck.model.submodel_interface import SubmodelChoice, SubmodelExtractor
from potluck.model.torch_trainer import TorchTrainer
from potluck.user_code import describe_user_error

__all__ = ["check_submodels"]

_DRAWS = 8  # of a sub-model for a mini-batch, of which the smallest is tried


def check_submodels(
    extractor: SubmodelExtractor | None,
    trainer: DeviceBackend,
    devices: Iterable[str],
    compute_costs: Callable[[TurnIdentity], object],
) -> None:
    """Compute the costs and, with tensors, one gradient of the smallest sub-model that a device trains."""
    if extractor is None or not extractor.extracts_from_replica:
        return
    tries = [(_smallest_choice(extractor, turn), turn) for turn in (TurnIdentity(name, 0, 0) for name in devices)]
    (_, choice), turn = min(tries, key=lambda candidate: candidate[0][0])
    try:
        compute_costs(turn)
        if isinstance(trainer, TorchTrainer):
            trainer.probe_submodel(turn, choice)
    except SettingError:
        raise
    except Exception as error:  # a forward with fewer channels may raise anything
        reason = describe_user_error(error.__cause__ or error)
        raise SettingError(
            "rounds.submodel",
            f"the model cannot be cut into sub-models ({reason}); use a recipe that trains the whole model, such as"
            " fedavg",
        ) from error


def _smallest_choice(extractor: SubmodelExtractor, turn: TurnIdentity) -> tuple[float, SubmodelChoice | None]:
    """The cost of the least that a device trains in this turn, and the choice if mini-batches make one."""
    fraction = extractor.cost_fraction(turn)
    if fraction is not None:
        return fraction, None
    rng = np.random.default_rng(0)
    choices = [extractor.choose_submodel(turn, 0.0, rng) for _ in range(_DRAWS)]
    choice = min(choices, key=lambda drawn: drawn.cost_fraction)
    return choice.cost_fraction, choice
