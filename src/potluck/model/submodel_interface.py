"""What the two sides of a round ask of a sub-model: which numbers it has, what it costs, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from potluck.model.model_replica import Loss, ModelReplica
from potluck.model.model_state import ModelState, WeightLayout
from potluck.model.update_merging import UpdateSum

__all__ = ["ExtractedSubmodel", "SubmodelChoice", "SubmodelExtractor", "SubmodelSpec", "TurnKey"]


class TurnKey(Protocol):
    """Whose turn it is."""

    @property
    def device(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def invited(self) -> int: ...


@dataclass(frozen=True, eq=False)
class SubmodelSpec:
    """A part of the model: where its numbers lie in the whole's two vectors, and its own layout of as many layers."""

    key: Hashable  # alike for parts that one small network can serve
    params: Tensor
    buffers: Tensor
    layout: WeightLayout
    macs: Sequence[float]  # of each layer, per sample

    def gather_layers(self, state: ModelState, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The selected numbers of the layers `first` to `last`."""
        params, buffers = self.layout.layer_slices(first, last)
        return state.params[self.params[params]], state.buffers[self.buffers[buffers]]

    def add_update(self, total: UpdateSum, params: Tensor, buffers: Tensor, weight: float) -> None:
        """Put an update of this part into a sum."""
        total.add_submodel(params, buffers, weight, self.params, self.buffers)


class SubmodelChoice(Protocol):
    """The part of the model that one mini-batch trains."""

    @property
    def cost_fraction(self) -> float:
        """Its cost as a share of the whole model's."""


class ExtractedSubmodel(Protocol):
    """What one mini-batch trains: a narrower network on loan from a replica of the whole model."""

    @property
    def replica(self) -> ModelReplica:
        """Whose gradient to take; its `numbers.params` are the weights to step."""

    def gather(self, vector: Tensor) -> Tensor: ...

    def scatter(self, small: Tensor, vector: Tensor) -> None: ...

    def close(self) -> None: ...


class SubmodelExtractor(Protocol):
    """A submodel part, bound to one model."""

    chooses_per_batch: bool  # whether every mini-batch trains a part of its own
    extracts_from_replica: bool  # whether parts are trained on loan from the whole model, or as networks of their own
    averages_changed_only: bool  # whether the mean of a number is over the updates that changed it only

    def select_submodel(self, turn: TurnKey) -> SubmodelSpec | None:
        """What a device is sent and sends back; None for the whole model. Both sides come to the same."""

    def cost_fraction(self, turn: TurnKey) -> float | None:
        """What all mini-batches of a turn train of the whole model's MACs; None where each chooses."""

    def choose_submodel(self, turn: TurnKey, affordable: float, draws: np.random.Generator) -> SubmodelChoice:
        """How much the next mini-batch trains, for at most `affordable` of a whole step's cost."""

    def extract_submodel(
        self, replica: ModelReplica, turn: TurnKey, choice: SubmodelChoice | None, draws: np.random.Generator
    ) -> ExtractedSubmodel:
        """What a mini-batch trains, where parts are on loan."""

    def build_network(self, turn: TurnKey, part: SubmodelSpec) -> nn.Module:
        """A small network of the part's layout, where parts are networks of their own; its numbers do not matter."""

    def training_loss(self, turn: TurnKey, loss: Loss) -> Loss:
        """What a device minimises."""

    def calibration_hook(self) -> Callable[[ModelReplica], None] | None:
        """What has to be done to the whole model before it is used, if anything."""
