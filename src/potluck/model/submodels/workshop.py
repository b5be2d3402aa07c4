"""Where a device's thread trains narrower networks on loan from its replica of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from potluck.model.replica import Replica
from potluck.model.submodels.selection import Selection, Subsets
from potluck.model.submodels.small import Small, Smalls
from potluck.model.submodels.width import Width

__all__ = ["Loan", "Workshop"]

Update = Callable[[Tensor, Tensor, Tensor | None], object]  # of (weights, gradient, velocity), in place


@dataclass(frozen=True, slots=True)
class Loan:
    """What is trained in one mini-batch: a narrower network on loan, or the whole model, where nothing is copied."""

    whole: Replica
    small: Small | None = None
    selection: Selection | None = None

    @property
    def replica(self) -> Replica:
        """Whose gradient to take; its `numbers.params` are the weights to step."""
        return self.whole if self.small is None else self.small

    def gather(self, vector: Tensor) -> Tensor:
        """This part of a vector of the whole model: momentum, an anchor."""
        return vector if self.selection is None else self.selection.params.gather(vector)

    def scatter(self, small: Tensor, vector: Tensor) -> None:
        """Write it back; the rest of the vector stays as it is."""
        if self.selection is not None:
            self.selection.params.scatter(small, vector)

    def close(self) -> None:
        """End the loan: weights and statistics go back to the whole model."""
        if self.small is not None and self.selection is not None:
            self.small.give_back(self.selection, self.whole.numbers)


class Workshop:
    """Lends out parts of one replica; one for each thread, as the replica itself."""

    def __init__(self, width: Width, whole: Replica, *, scaled: bool, static: bool = False, most: int = 0) -> None:
        self._width = width
        self._whole = whole
        self._static = static
        self._smalls = Smalls(width, whole.loss, scaled=scaled, static=static, of=whole, most=most)

    def lend(self, subsets: Subsets) -> Loan:
        """The sub-model that keeps these units, with the whole model's numbers of this moment."""
        if all(kept is None for kept in subsets) and not self._static:
            return Loan(self._whole)
        selection = self._width.select(subsets)
        small = self._smalls.get(selection.counts)
        small.borrow(selection, self._whole.numbers)
        return Loan(self._whole, small, selection)

    def step(
        self,
        subsets: Subsets,
        batch: tuple[Tensor, Tensor],
        update: Update,
        velocity: Tensor | None = None,
        draws: np.random.Generator | None = None,
    ) -> float:
        """One step of the sub-model; weights, momentum and statistics of all that is left out stay as they are."""
        loan = self.lend(subsets)
        gradient, loss = loan.replica.gradient(*batch, draws)
        slow = None if velocity is None else loan.gather(velocity)
        update(loan.replica.numbers.params, gradient, slow)
        if velocity is not None and slow is not None:
            loan.scatter(slow, velocity)
        loan.close()
        return loss
