"""The interface of sub-models: which weights one has, what it costs, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.update_merging import UpdateSum

__all__ = ["ExtractedSubmodel", "SubmodelChoice", "SubmodelExtractor", "SubmodelSpec", "TurnKey", "UpdateSlices"]


class TurnKey(Protocol):
    """Identifies a turn."""

    @property
    def device(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def invited(self) -> int: ...


@dataclass(frozen=True, eq=False)
class SubmodelSpec:
    """A sub-model: the indices of its entries in the whole model's vectors, and its own layout with as many layers."""

    key: Hashable  # equal for sub-models that one network can represent
    params: Tensor
    buffers: Tensor
    layout: WeightLayout
    macs: Sequence[float]  # of each layer, per sample
    once_macs: float = 0.0  # per sample that a device holds, before its first turn
    forward_macs: Sequence[float] = ()  # of each layer, per sample, for what is computed beside it and not trained

    def gather_layers(self, state: ModelState, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The sub-model's weights and buffers in the layers `first` to `last`."""
        params, buffers = self.layout.layer_slices(first, last)
        return state.params[self.params[params]], state.buffers[self.buffers[buffers]]

    def add_update(self, total: UpdateSum, params: Tensor, buffers: Tensor, weight: float) -> None:
        """Add an update of this sub-model to a sum."""
        total.add_submodel(params, buffers, weight, self.params, self.buffers)


class SubmodelChoice(Protocol):
    """The sub-model that one mini-batch trains."""

    @property
    def cost_fraction(self) -> float:
        """Its cost as a fraction of the whole model's."""


class ExtractedSubmodel(Protocol):
    """A narrower network for one mini-batch, extracted from a replica of the whole model until closed."""

    @property
    def replica(self) -> ModelReplica:
        """Computes the gradient; its `state.params` are the weights to step."""

    def gather(self, vector: Tensor) -> Tensor: ...

    def scatter(self, small: Tensor, vector: Tensor) -> None: ...

    def close(self) -> None: ...


class UpdateSlices(Protocol):
    """Updates of what a turn's mini-batches trained; a slice is known by its number of units of every channel set."""

    def widest_counts(self, choices: Iterable[SubmodelChoice]) -> tuple[int, ...]:
        """The slice that all these sub-models lie in; empty if it is the whole model."""

    def refusal(self, counts: Sequence[int]) -> str | None:
        """Why no update can be a slice of this size; None if it can."""

    def layout_of(self, counts: tuple[int, ...]) -> WeightLayout:
        """The layout of a slice, with as many layers as the model."""

    def cut(self, counts: tuple[int, ...], params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The slice of both vectors of an update."""

    def expand(self, counts: tuple[int, ...], params: Tensor, buffers: Tensor) -> tuple[Tensor, Tensor]:
        """The reverse of `cut`: the whole vectors, zero where nothing was trained."""


class SubmodelExtractor(Protocol):
    """A sub-model setting, bound to one model."""

    chooses_per_batch: bool  # whether every mini-batch trains its own sub-model
    extracts_from_replica: bool  # whether sub-models are extracted from a replica, or built as networks
    averages_changed_only: bool  # whether a weight's mean is over the updates that changed it only

    @property
    def slicer(self) -> UpdateSlices | None:
        """What cuts updates down to what was trained; None: they cover all that was pulled."""

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        """What a device is sent and sends back, None for the whole model; both sides compute the same."""

    def cost_fraction(self, turn: TurnKey) -> float | None:
        """The fraction of the whole model's MACs that a turn trains; None if each mini-batch chooses."""

    def choose_submodel(self, turn: TurnKey, affordable: float, rng: np.random.Generator) -> SubmodelChoice:
        """Choose what the next mini-batch trains, at a cost of at most `affordable` of a whole step's."""

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, rng: np.random.Generator
    ) -> ExtractedSubmodel:
        """Extract what a mini-batch trains, if `extracts_from_replica`."""

    def build_network(self, turn: TurnKey, submodel: SubmodelSpec) -> nn.Module:
        """Build a network of the sub-model's layout, unless `extracts_from_replica`; its weights do not matter."""

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        """The loss that a device minimises in this turn."""

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        """What must be done to the whole model before it is evaluated, if anything."""
