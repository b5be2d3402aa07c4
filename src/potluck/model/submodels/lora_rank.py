"""Sub-models of LoRA adapters: a weak device trains the leading ranks that it affords.

    lora_A (r, inputs)     ████████        a device that affords half of the ranks pulls, trains and pushes the
    lora_B (outputs, r)    ████░░░░        leading half of the rows of A and of the columns of B

The merge averages each entry over the devices that trained it. An adapter's scaling (alpha / r) stays that of the full
rank. The cost of the frozen weights stays too, so the fraction of the ranks follows the device's speed itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from potluck.errors import SettingError
from potluck.model.frozen_weights import copy_sharing_frozen
from potluck.model.layer_chain import LayerChain
from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import TensorEntry, WeightLayout
from potluck.model.submodel_context import SubmodelContext, TrainedModel
from potluck.model.submodel_interface import ExtractedSubmodel, SubmodelChoice, SubmodelExtractor, SubmodelSpec, TurnKey
from potluck.model.submodels.submodel_parts import Submodel
from potluck.model.submodels.width_extractor import Capacity, expected_speed_fraction
from potluck.settings import doc

__all__ = ["LoraRank", "LoraRankExtractor", "find_rank_axes"]

Fraction = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]

_FIRST_FACTOR = re.compile(r"(^|\.)lora_(embedding_)?A(?=\.|$)")


class RankAxis(NamedTuple):
    """Which dimension of a tensor is the rank, and how large it is."""

    dim: int
    rank: int

    def kept_rank(self, fraction: float) -> int:
        return max(1, round(fraction * self.rank))


class LoraRank(Submodel, frozen=True, kw_only=True, tag="lora-rank"):
    """The leading ranks of every LoRA adapter, as many as the device can afford."""

    capacity: Annotated[  # type: ignore[misc]
        Capacity, doc("Speed that a device is expected to have: nominal, or the mean or the least of its trace.")
    ] = "mean"
    levels: Annotated[tuple[Fraction, ...], doc("Fractions of the ranks to choose from.")] = (0.125, 0.25, 0.5, 1.0)

    def __post_init__(self) -> None:
        if not self.levels:
            raise SettingError("levels", "must contain at least one fraction")

    def unused_keys(self) -> Mapping[str, str]:
        return dict.fromkeys(("scaled", "static"), "on ranks of LoRA adapters")

    @property
    def chooses_per_round(self) -> bool:
        return True

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> SubmodelExtractor:
        speeds, levels = {device.name: device.speed for device in context.devices}, sorted(self.levels)

        def rank_fraction(device: str) -> float:
            affordable = model.affordable_fraction(device) * expected_speed_fraction(speeds[device], self.capacity)
            return max((level for level in levels if level <= affordable * (1 + 1e-9)), default=levels[0])

        return LoraRankExtractor(model.chain, model.layout, rank_fraction)


class LoraRankExtractor:
    """Sends a device the leading ranks; `rank_fraction` says how many, by device."""

    extracts_from_replica = False
    averages_changed_only = False
    slicer = None
    chooses_per_batch = False

    def __init__(self, chain: LayerChain, layout: WeightLayout, rank_fraction: Callable[[str], float]) -> None:
        self._chain = chain
        self._layout = layout
        self._rank_fraction = rank_fraction
        self._axes = find_rank_axes(layout)
        if not self._axes:
            raise SettingError(
                "rounds.submodel",
                "'lora-rank' needs a model with LoRA adapters (trained pairs of lora_A and lora_B), and this one has"
                " none; add them with peft's get_peft_model, or choose another part",
            )
        self._cached_spec = lru_cache(maxsize=64)(self._build_spec)

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        fraction = self._rank_fraction(turn.device)
        return None if fraction == 1.0 else self._cached_spec(fraction)

    def cost_fraction(self, turn: TurnKey) -> float:
        spec, whole = self.select_submodel(turn), sum(layer.macs for layer in self._chain.layers)
        return 1.0 if spec is None or not whole else sum(spec.macs) / whole

    def choose_submodel(self, turn: TurnKey, affordable: float, rng: np.random.Generator) -> SubmodelChoice:
        raise AssertionError("a device's ranks do not change from batch to batch")

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, rng: np.random.Generator
    ) -> ExtractedSubmodel:
        raise AssertionError("fewer ranks are trained as a separate network")

    def build_network(self, turn: TurnKey, submodel: SubmodelSpec) -> nn.Module:
        return self._narrow_module(self._rank_fraction(turn.device))

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        return loss

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        return None

    def _build_spec(self, fraction: float) -> SubmodelSpec:
        names = [(layer.parameters, layer.changing_buffers) for layer in self._chain.layers]
        layout = WeightLayout.of_module(self._narrow_module(fraction), names, frozen=False)
        params = [self._kept_entries(entry, fraction) for entry in self._layout.params]
        buffers = torch.arange(self._layout.buffer_bounds[-1])
        return SubmodelSpec(fraction, torch.cat(params), buffers, layout, self._layer_macs(fraction))

    def _kept_entries(self, entry: TensorEntry, fraction: float) -> Tensor:
        """The indices of a tensor's leading ranks in the whole model's vector."""
        indices, axis = torch.arange(entry.start, entry.stop).view(entry.shape), self._axes.get(entry.name)
        return (indices if axis is None else indices.narrow(axis.dim, 0, axis.kept_rank(fraction))).reshape(-1)

    def _layer_macs(self, fraction: float) -> Sequence[float]:
        macs = []
        for layer in self._chain.layers:
            kept = [self._axes[name] for name in layer.parameters if name in self._axes]
            macs.append(layer.macs * (kept[0].kept_rank(fraction) / kept[0].rank if kept else 1.0))
        return macs

    def _narrow_module(self, fraction: float) -> nn.Module:
        """The model with the leading ranks of its adapters; frozen weights are shared, scalings unchanged."""
        module = copy_sharing_frozen(self._chain.module, self._layout)
        for path, axis in self._axes.items():
            owner, _, name = path.rpartition(".")
            parameters = module.get_submodule(owner)._parameters
            weight = parameters[name]
            assert weight is not None
            parameters[name] = nn.Parameter(weight.detach().narrow(axis.dim, 0, axis.kept_rank(fraction)).clone())
        return module


def find_rank_axes(layout: WeightLayout) -> dict[str, RankAxis]:
    """The trained tensors of LoRA adapters by name: A has the rank as its first dimension, B as its second."""
    shapes, axes = {entry.name: entry.shape for entry in layout.params}, dict[str, RankAxis]()
    for name, shape in shapes.items():
        other = _FIRST_FACTOR.sub(lambda match: match.group()[:-1] + "B", name)
        second = shapes.get(other, ()) if other != name else ()
        if len(shape) > 1 and len(second) > 1 and shape[0] == second[1]:
            axes[name], axes[other] = RankAxis(0, shape[0]), RankAxis(1, shape[0])
    return axes
