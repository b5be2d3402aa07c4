"""Extracts narrower networks from a thread's replica of the whole model, for training."""

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
    """What one mini-batch trains: a narrower network, or the whole model without any copying."""

    whole: ModelReplica
    narrow: NarrowReplica | None = None
    selection: SubmodelSelection | None = None

    @property
    def replica(self) -> ModelReplica:
        """Computes the gradient; its `state.params` are the weights to step."""
        return self.whole if self.narrow is None else self.narrow

    def gather(self, vector: Tensor) -> Tensor:
        """The sub-model's entries of a vector of the whole model, such as momentum or an anchor."""
        return vector if self.selection is None else self.selection.params.gather(vector)

    def scatter(self, small: Tensor, vector: Tensor) -> None:
        """Write them back; the rest of the vector is unchanged."""
        if self.selection is not None:
            self.selection.params.scatter(small, vector)

    def close(self) -> None:
        """Write weights and statistics back to the whole model."""
        if self.narrow is not None and self.selection is not None:
            self.narrow.scatter_to(self.selection, self.whole.state)


class WidthWorkspace:
    """Extracts sub-models of one replica; one per thread, like the replica itself."""

    def __init__(
        self, slimmable: SlimmableModel, whole: ModelReplica, *, scaled: bool, static: bool = False, most: int = 0
    ) -> None:
        self._slimmable = slimmable
        self._whole = whole
        self._static = static
        self._replicas = NarrowReplicaCache(slimmable, whole.loss, scaled=scaled, static=static, whole=whole, most=most)

    def extract_submodel(self, subsets: Subsets) -> WidthSubmodel:
        """The sub-model that keeps these units, with the whole model's current weights."""
        if all(kept is None for kept in subsets) and not self._static:
            return WidthSubmodel(self._whole)
        selection = self._slimmable.select_units(subsets)
        narrow = self._replicas.get_replica(selection.counts)
        narrow.gather_from(selection, self._whole.state)
        return WidthSubmodel(self._whole, narrow, selection)

    def train_step(
        self,
        subsets: Subsets,
        batch: tuple[Tensor, Tensor],
        update: Update,
        velocity: Tensor | None = None,
        rng: np.random.Generator | None = None,
    ) -> float:
        """One step of the sub-model; weights, momentum and statistics outside it are unchanged."""
        submodel = self.extract_submodel(subsets)
        gradient, loss = submodel.replica.gradient(*batch, rng)
        gathered = None if velocity is None else submodel.gather(velocity)
        update(submodel.replica.state.params, gradient, gathered)
        if velocity is not None and gathered is not None:
            submodel.scatter(gathered, velocity)
        submodel.close()
        return loss
