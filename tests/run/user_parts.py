"""User code for tests: two sub-model parts, a task, and parts and losses that raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import potluck
from potluck.data import from_tensors
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.submodel_context import SubmodelContext
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.submodels.slimmable_model import SlimmableModel, UnitChooser, leading_units, uniform_counts
from potluck.model.submodels.submodel_parts import Submodel, WidthSubmodelPart
from potluck.model.submodels.width_sampler import Counts
from potluck.model.update_merging import MergeRule


class HalfWidth(WidthSubmodelPart, frozen=True, kw_only=True):
    """The leading units of every set; a device never trains the whole model."""

    kept: float = 0.5

    @property
    def chooses_per_round(self) -> bool:
        return True

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, self.kept)]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units


class LinearModel(Submodel, frozen=True, kw_only=True):
    """Every device trains a linear model instead of the job's own."""

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.seed)
            model = nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(chain.shape)), 4))
        return trace_layers(model, chain.inputs)

    def save_model(
        self, module: nn.Module, extractor: SubmodelExtractor | None, folder: Path | None
    ) -> Mapping[str, Any]:
        return {"parameters": sum(param.numel() for param in module.parameters())}


class BrokenMerge(MergeRule, frozen=True, kw_only=True):
    """A part that raises on the coordinator."""

    def update_weight(self, samples: int, staleness: int) -> float:
        raise KeyError("pepper")


def build_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 4))


def burnt_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Raises in training, but not on the two samples with which a model is probed beforehand."""
    if outputs.requires_grad and len(outputs) > 2:
        raise ZeroDivisionError("burnt")
    return nn.functional.cross_entropy(outputs, targets)


def build_task() -> potluck.Task:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(80, 12, generator=generator), torch.arange(80) % 4
    return potluck.Task(build_model, from_tensors(x[:60], y[:60], x[60:], y[60:]), name="own")


def build_burnt_task() -> potluck.Task:
    task = build_task()
    return potluck.Task(task.model, task.data, burnt_loss, name="burnt")
