"""What the two sides of a round ask of a sub-model: which numbers it has, and a small network that trains them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from potluck.model.replica import Loss, Replica
from potluck.model.state import Layout, State

__all__ = ["Carver", "Choice", "Selection", "Turn"]


class Turn(Protocol):
    """Whose turn it is."""

    @property
    def device(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def invited(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Selection:
    """A part of the model: where its numbers lie in the whole's two vectors, and its own layout of as many layers."""

    key: Hashable  # alike for selections that one small network can serve
    params: Tensor
    buffers: Tensor
    layout: Layout
    macs: Sequence[int]  # of each layer, per sample

    def cut(self, state: State, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The selected numbers of the layers `first` to `last`."""
        params, buffers = self.layout.slices(first, last)
        return state.params[self.params[params]], state.buffers[self.buffers[buffers]]


class Choice(Protocol):
    """The part of the model that one mini-batch trains."""

    @property
    def share(self) -> float:
        """Its cost as a share of a whole step's."""


class Carver(Protocol):
    """A submodel part, bound to one model."""

    chooses: bool  # whether every mini-batch trains a part of its own

    def select(self, turn: Turn) -> Selection | None:
        """What a device is sent and sends back; None for the whole model. Both sides come to the same."""

    def network(self, turn: Turn, selection: Selection) -> nn.Module:
        """A small network of the selection's layout; its numbers do not matter."""

    def loss(self, turn: Turn, loss: Loss) -> Loss:
        """What a device minimises."""

    def choose(self, turn: Turn, affordable: float, draws: np.random.Generator) -> Choice:
        """The part for the next mini-batch, for at most `affordable` of a whole step's cost."""

    def gradient(
        self, replica: Replica, choice: Choice, inputs: Tensor, targets: Tensor, draws: np.random.Generator | None
    ) -> tuple[Tensor, float, Tensor | None]:
        """The chosen part's gradient in the whole's vector, the loss, and which entries it is of (None: all)."""
