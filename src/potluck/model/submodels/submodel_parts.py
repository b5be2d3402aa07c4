"""The submodel part of a round: which sub-model a device pulls, and which it trains in each mini-batch.

    kind                pulled            in each mini-batch             units            how many
    whole               everything        everything
    filter-dropout      everything        what the budget allows         random, leading  an explored table
    uniform-dropout     everything        what the budget allows         random           one rate for all sets
    federated-dropout   what fits         the same                       random           one rate for all sets
    heterofl            what fits         the same                       leading          fixed levels
    fedrolex            what fits         the same                       rolling          fixed levels
    fjord               what fits         any level up to it             leading          fixed levels
    small               everything        everything (the model itself was made small)    one cost fraction

A budget is a fraction of the whole model's cost: of its MACs, or of a step's seconds if the table was measured in them.
Choosing how much to train needs no tensors and can happen at any time; the units are chosen where the tensors are. What
fits into a round must be known before it begins: `capacity` says for which speed of the device, the nominal one or
the mean or lowest of its trace.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np

from potluck import seeds
from potluck.errors import SettingError
from potluck.model.model_replica import ModelReplica
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.submodel_selection import SubmodelSelection, Subsets
from potluck.model.submodels.unit_subsets import (
    UnitChooser,
    choose_subsets,
    leading_units,
    random_units,
    rolling_units,
    uniform_counts,
)
from potluck.model.submodels.width_workspace import WidthWorkspace
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Part

__all__ = ["Capacity", "RoundSubmodel", "Submodel", "WholeModel", "WidthChoice", "WidthSampler"]

Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
STEPS = tuple(step / 20 for step in range(2, 21))
WIDEST_GAP = 1.15  # between the costs of adjacent choices
Counts = tuple[int, ...]
Rates = Sequence[float]
Capacity = Literal["nominal", "mean", "least"]


class WidthChoice(NamedTuple):
    """How much of the model to train: units of every set, and the cost as a fraction of the whole model's."""

    counts: Counts
    cost_fraction: float


class RoundSubmodel(NamedTuple):
    """The sub-model that a device has in one round."""

    choice: WidthChoice
    subsets: Subsets
    selection: SubmodelSelection


class Submodel(Part, frozen=True, kw_only=True):
    """Decides what a device trains; this base class trains the whole model."""

    capacity: ClassVar[Capacity] = "nominal"

    scaled: bool = False  # scale by 1/(fraction kept), as dropout does
    static: bool = False  # batch norm without running statistics

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        """The counts to choose from."""
        return [width.full_counts]

    def candidate_choices(self, width: SlimmableModel) -> Iterable[WidthChoice]:
        """The counts with their cost: their MACs, unless the part measured it."""
        return (WidthChoice(counts, width.macs_fraction(counts)) for counts in self.candidate_counts(width))

    @property
    def chooses_per_round(self) -> bool:
        """Whether the choice is made once, before the model is pulled."""
        return False

    @property
    def chooses_per_batch(self) -> bool:
        """Whether every mini-batch chooses how much it trains."""
        return not self.chooses_per_round

    @property
    def averages_changed_only(self) -> bool:
        """Whether a weight's mean is over only those updates that changed it."""
        return False

    def choose_width(self, carver: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        """How much to train in the next mini-batch; `budget` is a fraction of the whole model's cost."""
        return carver.affordable_choice(budget)

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        """A function that chooses the units to keep."""
        return random_units(rng)

    def create_sampler(self, width: SlimmableModel, seed: int) -> WidthSampler:
        return WidthSampler(self, width, seed)


class WholeModel(Submodel, frozen=True, kw_only=True, tag="whole"):
    """Always trains everything."""


class FilterDropout(Submodel, frozen=True, kw_only=True, tag="filter-dropout"):
    """DISTREAL: before each mini-batch, the entry of an explored table that the device can afford."""

    table: ParetoTable | None = None  # in a job, the file that `potluck explore` wrote; default: one rate for all sets
    units: Literal["random", "leading"] = "random"  # leading: smaller sub-models nest in larger ones, as in HeteroFL
    mean: Literal["all", "trained"] = "all"  # of a weight: over all updates, or over those that changed it
    scaled: bool = True
    grid: Annotated[int, msgspec.Meta(ge=1)] = 1  # keep multiples of this many units

    @property
    def averages_changed_only(self) -> bool:
        return self.mean == "trained"

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        if self.table is None:
            return [uniform_counts(width, kept, self.grid) for kept in STEPS]
        rates = _table_rates(self.table, width)
        counted = [width.macs_fraction(width.kept_counts(vector, self.grid)) for vector in rates]
        return [width.kept_counts(vector, self.grid) for _, vector in _interpolate_rates(rates, counted)]

    def candidate_choices(self, width: SlimmableModel) -> Iterable[WidthChoice]:
        if self.table is None or self.table.cost == "macs":
            return super().candidate_choices(width)
        return self._measured_choices(self.table, width)

    def _measured_choices(self, table: ParetoTable, width: SlimmableModel) -> list[WidthChoice]:
        """Costs in seconds: as measured, and interpolated by the set that is closest to the more expensive entry."""
        rates, costs = _table_rates(table, width), [*table.cost_fractions, 1.0]
        sizes = [width.kept_counts(vector, self.grid) for vector in rates]
        found: dict[Counts, float] = {}
        for place, vector in _interpolate_rates(rates, costs):
            counts, after = width.kept_counts(vector, self.grid), min(place + 1, len(sizes) - 1)
            reached = _mixture_fraction(counts, sizes[place], sizes[after])
            cost = costs[place] + (costs[after] - costs[place]) * reached
            found[counts] = max(cost, found.get(counts, 0.0))
        found.update(zip(sizes, costs, strict=True))
        return [WidthChoice(counts, cost) for counts, cost in found.items()]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units if self.units == "leading" else random_units(rng)


def _table_rates(table: ParetoTable, width: SlimmableModel) -> list[Rates]:
    """The table's rates and those of the whole model, which a search over noisy trainings may have missed."""
    names = tuple(part.name for part in width.sets)
    if table.sets != names:
        raise SettingError(
            "rounds.submodel.table", f"is for another model ({table.model}); create one with `potluck explore`"
        )
    return [*(entry.rates for entry in table.entries), (0.0,) * len(names)]


def _interpolate_rates(rates: Sequence[Rates], costs: Sequence[float]) -> Iterator[tuple[int, Rates]]:
    """The vectors and, where the next one costs far more, mixtures of both, so that no budget goes unused.

    Each comes with the index of the vector that it is or follows.
    """
    pairs = pairwise(zip(rates, costs, strict=True))
    for place, ((low, cheap), (high, dear)) in enumerate(pairs):
        parts = max(1, math.ceil(math.log(dear / cheap) / math.log(WIDEST_GAP)))
        for part in range(parts):
            yield place, tuple(one + (other - one) * part / parts for one, other in zip(low, high, strict=True))
    yield len(rates) - 1, rates[-1]


def _mixture_fraction(counts: Counts, low: Counts, high: Counts) -> float:
    """How far a mixture is between two sizes, by the set that is furthest; rounding may have moved it."""
    far = ((now - one) / (other - one) for now, one, other in zip(counts, low, high, strict=True) if one != other)
    return min(1.0, max(far, default=0.0))


class UniformDropout(Submodel, frozen=True, kw_only=True, tag="uniform-dropout"):
    """Filter dropout with one rate for all sets, which needs no table."""

    scaled: bool = True
    grid: Annotated[int, msgspec.Meta(ge=1)] = 1  # keep multiples of this many units

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept, self.grid) for kept in STEPS]


class _PerRoundSubmodel(Submodel, frozen=True, kw_only=True):
    capacity: Capacity = "mean"  # type: ignore[misc]
    levels: tuple[Share, ...] = STEPS

    @property
    def chooses_per_round(self) -> bool:
        return True

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept) for kept in self.levels]


class FederatedDropout(_PerRoundSubmodel, frozen=True, kw_only=True, tag="federated-dropout"):
    """Caldas et al. 2018: a random sub-model for each device and round."""

    scaled: bool = True


class HeteroFl(_PerRoundSubmodel, frozen=True, kw_only=True, tag="heterofl"):
    """Diao et al. 2020: the leading slice of the level that a device can afford."""

    levels: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units


class FedRolex(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fedrolex"):
    """Alam et al. 2022: a window that moves over the units from round to round."""

    levels: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return rolling_units(round)


class Fjord(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fjord"):
    """Horváth et al. 2021: in each mini-batch, a leading slice of any level up to the device's own."""

    levels: tuple[Share, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    @property
    def chooses_per_batch(self) -> bool:
        return True

    def choose_width(self, carver: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        return carver.choices[int(rng.integers(carver.affordable_index(budget) + 1))]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units


class SmallModel(Submodel, frozen=True, kw_only=True, tag="small"):
    """One smaller network for all devices and the server; `share` is its largest fraction of the whole one's MACs."""

    share: Share = 0.33

    def largest_counts(self, width: SlimmableModel) -> Counts:
        """The counts of the largest network within `share`, with the same fraction of every set."""
        grid = [uniform_counts(width, kept / 100) for kept in range(1, 101)]
        return [grid[0], *(counts for counts in grid if width.macs_fraction(counts) <= self.share)][-1]


class WidthSampler:
    """A submodel part, applied to one model."""

    def __init__(self, part: Submodel, width: SlimmableModel, seed: int) -> None:
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
