"""Gives lazy layers (`nn.LazyLinear`, `nn.LazyConv2d`, …) their shapes and initial weights, by running one sample."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from potluck import seeds
from potluck.model.input_spec import call_model, misfit_error

__all__ = ["has_lazy_layers", "initialise_lazy_layers"]


def has_lazy_layers(module: nn.Module) -> bool:
    """Whether a parameter or buffer has no shape yet."""
    return any(is_lazy(tensor) for tensor in chain(module.parameters(), module.buffers()))


def initialise_lazy_layers(module: nn.Module, inputs: Any, seed: int) -> None:
    """Run the model once in evaluation mode; the new weights are drawn from the run's seed, so all devices agree."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seeds.child_seed(seed, "lazy-layers"))
        try:
            call_model(module.eval(), inputs)
        except Exception as error:  # a user's forward may raise anything
            raise misfit_error(error, inputs) from error
    for submodule, training in modes.items():
        submodule.training = training
