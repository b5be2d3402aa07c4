"""What the two sides of a round ask of a sub-model: which numbers it has, what it costs, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor, nn

from potluck.model.merge import Sum
from potluck.model.replica import Loss, Replica
from potluck.model.state import Layout, State

__all__ = ["Carver", "Choice", "Loan", "Part", "Turn"]


class Turn(Protocol):
    """Whose turn it is."""

    @property
    def device(self) -> str: ...

    @property
    def round(self) -> int: ...

    @property
    def invited(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the model: where its numbers lie in the whole's two vectors, and its own layout of as many layers."""

    key: Hashable  # alike for parts that one small network can serve
    params: Tensor
    buffers: Tensor
    layout: Layout
    macs: Sequence[float]  # of each layer, per sample

    def cut(self, state: State, first: int, last: int) -> tuple[Tensor, Tensor]:
        """The selected numbers of the layers `first` to `last`."""
        params, buffers = self.layout.slices(first, last)
        return state.params[self.params[params]], state.buffers[self.buffers[buffers]]

    def add_to(self, total: Sum, params: Tensor, buffers: Tensor, weight: float) -> None:
        """Put an update of this part into a sum."""
        total.add_part(params, buffers, weight, self.params, self.buffers)


class Choice(Protocol):
    """The part of the model that one mini-batch trains."""

    @property
    def share(self) -> float:
        """Its cost as a share of the whole model's."""


class Loan(Protocol):
    """What one mini-batch trains: a narrower network on loan from a replica of the whole model."""

    @property
    def replica(self) -> Replica:
        """Whose gradient to take; its `numbers.params` are the weights to step."""

    def gather(self, vector: Tensor) -> Tensor: ...

    def scatter(self, small: Tensor, vector: Tensor) -> None: ...

    def close(self) -> None: ...


class Carver(Protocol):
    """A submodel part, bound to one model."""

    chooses: bool  # whether every mini-batch trains a part of its own
    lends: bool  # whether parts are trained on loan from the whole model, or as networks of their own
    unmoved_is_untrained: bool  # whether the mean of a number is over the updates that changed it only

    def select(self, turn: Turn) -> Part | None:
        """What a device is sent and sends back; None for the whole model. Both sides come to the same."""

    def share(self, turn: Turn) -> float | None:
        """What all mini-batches of a turn train of the whole model's MACs; None where each chooses."""

    def choose(self, turn: Turn, affordable: float, draws: np.random.Generator) -> Choice:
        """How much the next mini-batch trains, for at most `affordable` of a whole step's cost."""

    def lend(self, replica: Replica, turn: Turn, choice: Choice | None, draws: np.random.Generator) -> Loan:
        """What a mini-batch trains, where parts are on loan."""

    def network(self, turn: Turn, part: Part) -> nn.Module:
        """A small network of the part's layout, where parts are networks of their own; its numbers do not matter."""

    def loss(self, turn: Turn, loss: Loss) -> Loss:
        """What a device minimises."""

    def calibration(self) -> Callable[[Replica], None] | None:
        """What has to be done to the whole model before it is used, if anything."""
