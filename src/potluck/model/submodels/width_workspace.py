"""Where a device's thread trains narrower networks on loan from its replica of the whole model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from potluck.model.model_replica import ModelReplica
from potluck.model.submodels.narrow_replica import NarrowReplica, NarrowReplicaCache
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import SubmodelSelection, Subsets

__all__ = ["WidthSubmodel", "WidthWorkspace"]

Update = Callable[[Tensor, Tensor, Tensor | None], object]  # of (weights, gradient, velocity), in place


@dataclass(frozen=True, slots=True)
class WidthSubmodel:
    """What is trained in one mini-batch: a narrower network on loan, or the whole model, where nothing is copied."""

    whole: ModelReplica
    narrow: NarrowReplica | None = None
    selection: SubmodelSelection | None = None

    @property
    def replica(self) -> ModelReplica:
        """Whose gradient to take; its `numbers.params` are the weights to step."""
        return self.whole if self.narrow is None else self.narrow

    def gather(self, vector: Tensor) -> Tensor:
        """This part of a vector of the whole model: momentum, an anchor."""
        return vector if self.selection is None else self.selection.params.gather(vector)

    def scatter(self, small: Tensor, vector: Tensor) -> None:
        """Write it back; the rest of the vector stays as it is."""
        if self.selection is not None:
            self.selection.params.scatter(small, vector)

    def close(self) -> None:
        """End the loan: weights and statistics go back to the whole model."""
        if self.narrow is not None and self.selection is not None:
            self.narrow.scatter_to(self.selection, self.whole.state)


class WidthWorkspace:
    """Lends out parts of one replica; one for each thread, as the replica itself."""

    def __init__(
        self, width: SlimmableModel, whole: ModelReplica, *, scaled: bool, static: bool = False, most: int = 0
    ) -> None:
        self._slimmable = width
        self._whole = whole
        self._static = static
        self._replicas = NarrowReplicaCache(width, whole.loss, scaled=scaled, static=static, of=whole, most=most)

    def extract_submodel(self, subsets: Subsets) -> WidthSubmodel:
        """The sub-model that keeps these units, with the whole model's numbers of this moment."""
        if all(kept is None for kept in subsets) and not self._static:
            return WidthSubmodel(self._whole)
        selection = self._slimmable.select_units(subsets)
        small = self._replicas.get_replica(selection.counts)
        small.gather_from(selection, self._whole.state)
        return WidthSubmodel(self._whole, small, selection)

    def train_step(
        self,
        subsets: Subsets,
        batch: tuple[Tensor, Tensor],
        update: Update,
        velocity: Tensor | None = None,
        draws: np.random.Generator | None = None,
    ) -> float:
        """One step of the sub-model; weights, momentum and statistics of all that is left out stay as they are."""
        loan = self.extract_submodel(subsets)
        gradient, loss = loan.replica.gradient(*batch, draws)
        slow = None if velocity is None else loan.gather(velocity)
        update(loan.replica.state.params, gradient, slow)
        if velocity is not None and slow is not None:
            loan.scatter(slow, velocity)
        loan.close()
        return loss
