"""Width methods in a round: sub-models of fewer channels, extracted from a replica of the whole model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from potluck.fleet import Trace
from potluck.model.input_spec import call_model
from potluck.model.layer_chain import trace_layers
from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import WeightLayout
from potluck.model.submodel_context import LabelledSamples, SubmodelContext, TrainedModel
from potluck.model.submodel_interface import ExtractedSubmodel, SubmodelChoice, SubmodelSpec, TurnKey, UpdateSlices
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.slimmable_model import ChannelSet, SlimmableModel
from potluck.model.submodels.update_slice import UpdateSlicer
from potluck.model.submodels.width_sampler import RoundSubmodel, WidthChoice, WidthRule, WidthSampler
from potluck.model.submodels.width_workspace import WidthWorkspace

__all__ = [
    "Capacity",
    "WidthExtractor",
    "build_width_extractor",
    "calibrate_norms",
    "expected_speed_fraction",
    "training_batches",
]


TRACE_INTERVALS = 2000  # of a trace without an end, from which its mean is taken
Capacity = Literal["nominal", "mean", "least"]  # the speed of a device by which a size is chosen ahead of time

Batch = tuple[Tensor, Tensor]


class WidthExtractor:
    """Applies a width method; `capacity` is the fraction of the whole model's cost that a device can afford."""

    extracts_from_replica = True

    def __init__(
        self,
        sampler: WidthSampler,
        capacity: Callable[[str], float],
        batches: Callable[[], Iterable[Batch]],
        slicer: UpdateSlices | None = None,
    ) -> None:
        self._sampler = sampler
        self._capacity = capacity
        self._batches = batches
        self.chooses_per_batch = sampler.part.chooses_per_batch
        self.averages_changed_only = sampler.part.averages_changed_only
        self.slicer = slicer
        self._cached_submodel = lru_cache(maxsize=1024)(self._submodel_for_round)
        self._cached_layout = lru_cache(maxsize=64)(self._narrow_layout)

    @property
    def channel_sets(self) -> tuple[ChannelSet, ...]:
        """What may be dropped."""
        return self._sampler.slimmable.sets

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        pulled = self._cached_submodel(turn.device, turn.round)
        return None if pulled is None else self._build_spec(pulled)

    def cost_fraction(self, turn: TurnKey) -> float | None:
        if self.chooses_per_batch:
            return None
        return self._sampler.affordable_choice(self._capacity(turn.device)).cost_fraction

    def choose_submodel(self, turn: TurnKey, affordable: float, rng: np.random.Generator) -> SubmodelChoice:
        return self._sampler.choose_width(affordable, rng, self._capacity(turn.device))

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, rng: np.random.Generator
    ) -> ExtractedSubmodel:
        pulled = self._cached_submodel(turn.device, turn.round)
        if not isinstance(replica.workspace, WidthWorkspace):
            replica.workspace = self._sampler.create_workspace(replica)
        if choice is None:
            choice = self._sampler.affordable_choice(self._capacity(turn.device)) if pulled is None else pulled.choice
        assert isinstance(choice, WidthChoice)
        return replica.workspace.extract_submodel(self._sampler.choose_units(choice, rng, pulled))

    def build_network(self, turn: TurnKey, submodel: SubmodelSpec) -> nn.Module:
        raise AssertionError("width methods extract sub-models from a replica")

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        return loss

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        return (lambda replica: calibrate_norms(replica, self._batches())) if self._sampler.part.static else None

    def _submodel_for_round(self, device: str, round: int) -> RoundSubmodel | None:
        return self._sampler.submodel_for_round(device, round, self._capacity(device))

    def _build_spec(self, pulled: RoundSubmodel) -> SubmodelSpec:
        layout, macs = self._cached_layout(pulled.choice.counts)
        selection = pulled.selection
        return SubmodelSpec(pulled.choice.counts, selection.params.index, selection.buffers.index, layout, macs)

    def _narrow_layout(self, counts: tuple[int, ...]) -> tuple[WeightLayout, tuple[float, ...]]:
        """The layout of a network with these counts, and its layers' MACs."""
        slimmable: SlimmableModel = self._sampler.slimmable
        module = build_narrow_network(slimmable, width_agnostic_graph(slimmable), counts)
        chain = trace_layers(module, slimmable.chain.inputs)
        return slimmable.narrow_layout(counts), tuple(float(layer.macs) for layer in chain.layers)


def build_width_extractor(
    rule: WidthRule, capacity: Capacity, context: SubmodelContext, model: TrainedModel
) -> WidthExtractor:
    """The extractor of a width method for one model and one fleet."""
    speeds, samples = {device.name: device.speed for device in context.devices}, context.samples

    def expected_capacity(device: str) -> float:
        return model.affordable_fraction(device) * expected_speed_fraction(speeds[device], capacity)

    slimmable = SlimmableModel(model.chain)
    return WidthExtractor(
        WidthSampler(rule, slimmable, context.seed),
        expected_capacity,
        lambda: () if samples is None else training_batches(samples),
        UpdateSlicer(slimmable) if rule.slices_updates and not context.stateful_codec else None,
    )


@lru_cache(maxsize=1024)
def expected_speed_fraction(speed: Trace, capacity: Capacity) -> float:
    """The fraction of its nominal speed that a device is expected to have when a size is chosen ahead of time."""
    if capacity == "nominal":
        return 1.0
    start, total, least = 0.0, 0.0, math.inf
    for until, level in islice(speed.level_intervals(np.random.default_rng(0)), TRACE_INTERVALS):
        least = min(least, level)
        if until == math.inf:  # the last level holds for ever, so it is the mean
            return level if capacity == "mean" else least
        total, start = total + level * (until - start), until
    return total / start if capacity == "mean" else least


def training_batches(samples: LabelledSamples, count: int = 8, size: int = 128) -> Iterable[Batch]:
    """A few batches of evenly spaced training samples, always the same."""
    total = len(samples)
    chosen = torch.linspace(0, total - 1, min(total, count * size)).long().numpy()
    for start in range(0, len(chosen), size):
        yield samples.batch(chosen[start : start + size])


@torch.no_grad()
def calibrate_norms(replica: ModelReplica, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Set every running statistic to its mean over these batches; nothing else changes.

    HeteroFL trains without running statistics (static batch norm) and computes them from data before the model is used.
    """
    replica.module.eval()
    norms = [layer for layer in replica.module.modules() if isinstance(layer, _NormBase) and layer.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
        norm.momentum = None  # a plain mean over all batches
    for inputs, _ in batches:
        call_model(replica.module, inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    replica.module.eval()
