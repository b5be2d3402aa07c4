"""Chooses how much of a model a device trains, and which units, by the rule of a width method.

How much is a number and may be chosen at any time; which units is left to the thread that holds the tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from potluck import seeds
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels.slimmable_model import SlimmableModel, UnitChooser, choose_subsets
from potluck.model.submodels.submodel_selection import SubmodelSelection, Subsets
from potluck.model.submodels.width_workspace import WidthWorkspace

__all__ = ["Counts", "RoundSubmodel", "WidthChoice", "WidthRule", "WidthSampler"]

Counts = tuple[int, ...]


class WidthChoice(NamedTuple):
    """How much of the model to train: units of every set, and the cost as a fraction of the whole model's."""

    counts: Counts
    cost_fraction: float


class RoundSubmodel(NamedTuple):
    """The sub-model that a device has in one round."""

    choice: WidthChoice
    subsets: Subsets
    selection: SubmodelSelection


class WidthRule(Protocol):
    """The choices that a width method makes; `Submodel` has them all."""

    @property
    def scaled(self) -> bool:
        """Whether kept activations are scaled up, as dropout does."""

    @property
    def static(self) -> bool:
        """Whether batch norms go without running statistics."""

    @property
    def chooses_per_round(self) -> bool: ...

    @property
    def chooses_per_batch(self) -> bool: ...

    @property
    def averages_changed_only(self) -> bool: ...

    @property
    def slices_updates(self) -> bool: ...

    def candidate_choices(self, width: SlimmableModel) -> Iterable[WidthChoice]: ...

    def choose_width(self, sampler: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice: ...

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser: ...


class WidthSampler:
    """A width method, applied to one model."""

    def __init__(self, part: WidthRule, width: SlimmableModel, seed: int) -> None:
        self.part = part
        self.slimmable = width
        self._seed = seed
        self.choices = sorted(dict.fromkeys(part.candidate_choices(width)), key=lambda step: step.cost_fraction)
        self._cost_fractions = [step.cost_fraction for step in self.choices]

    def affordable_index(self, budget: float) -> int:
        """The index of the largest choice within a budget (a fraction of the whole model's cost), else the smallest."""
        return max(bisect_right(self._cost_fractions, budget) - 1, 0)

    def affordable_choice(self, budget: float) -> WidthChoice:
        return self.choices[self.affordable_index(budget)]

    def submodel_for_round(self, device: str, round: int, capacity: float) -> RoundSubmodel | None:
        """What a device of this capacity is sent, None for everything; coordinator and device compute the same."""
        choice = self.affordable_choice(capacity)
        if not self.part.chooses_per_round or choice.counts == self.slimmable.full_counts:
            return None
        rng = seeds.child_generator(self._seed, "submodel", round, device)
        kept = choose_subsets(self.slimmable, choice.counts, self.part.unit_chooser(round, rng))
        return RoundSubmodel(choice, kept, self.slimmable.select_units(kept))

    def choose_width(self, budget: float, rng: np.random.Generator, capacity: float = 1.0) -> WidthChoice:
        """How much to train in the next mini-batch; `budget` is ignored if the round fixes it."""
        return self.part.choose_width(self, capacity if self.part.chooses_per_round else budget, rng)

    def choose_units(
        self, choice: WidthChoice, rng: np.random.Generator, pulled: RoundSubmodel | None = None
    ) -> Subsets:
        """Which units to train in this mini-batch, within the pulled sub-model if there is one."""
        if pulled is not None and pulled.choice == choice:
            return pulled.subsets
        return choose_subsets(self.slimmable, choice.counts, self.part.unit_chooser(0, rng))

    def create_workspace(self, replica: ModelReplica) -> WidthWorkspace:
        """The workspace in which a thread trains sub-models of its replica."""
        return WidthWorkspace(self.slimmable, replica, scaled=self.part.scaled, static=self.part.static)
