"""The submodel part of a round: which part of the model a device pulls, and which it trains in each mini-batch.

    kind                pulled            in each mini-batch             units            how many
    whole               everything        everything
    filter-dropout      everything        what the budget allows         random, leading  an explored table
    uniform-dropout     everything        what the budget allows         random           one rate for all sets
    federated-dropout   what fits         the same                       random           one rate for all sets
    heterofl            what fits         the same                       leading          fixed levels
    fedrolex            what fits         the same                       rolling          fixed levels
    fjord               what fits         any level up to it             leading          fixed levels
    small               everything        everything (the model itself was made small)    one share

A budget is a share of what the whole model costs: of its MACs, or of a step's seconds where a table was made of them.
Choosing how much is numbers only and may happen at any moment; which units is left to whoever has the tensors. What
fits into a round has to be known before it begins: `capacity` says by which speed of the device, the nominal one or
what its trace has on average or at least.
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
    Chooser,
    choose_subsets,
    leading_units,
    random_units,
    rolling_units,
    uniform_counts,
)
from potluck.model.submodels.width_workspace import WidthWorkspace
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Part, doc

__all__ = ["Capacity", "RoundSubmodel", "Submodel", "WholeModel", "WidthChoice", "WidthSampler"]

Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
STEPS = tuple(step / 20 for step in range(2, 21))
WIDEST_GAP = 1.15  # between the costs of neighbours
Counts = tuple[int, ...]
Rates = Sequence[float]
Capacity = Literal["nominal", "mean", "least"]


class WidthChoice(NamedTuple):
    """How much of the model: units of every set, and the cost (see above) as a share of the whole model's."""

    counts: Counts
    cost_fraction: float


class RoundSubmodel(NamedTuple):
    """The sub-model that a device holds in one round."""

    choice: WidthChoice
    subsets: Subsets
    selection: SubmodelSelection


class Submodel(Part, frozen=True, kw_only=True):
    """Selects the sub-model that a device trains; this base trains the whole model."""

    capacity: ClassVar[Capacity] = "nominal"

    scaled: Annotated[bool, doc("Scale the kept weights by 1 / (fraction kept), as dropout does.")] = False
    static: Annotated[
        bool, doc("Use batch norm without running statistics; they are computed from training data before evaluation.")
    ] = False

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        """The sizes to choose from."""
        return [width.full_counts]

    def candidate_choices(self, width: SlimmableModel) -> Iterable[WidthChoice]:
        """The same with what they cost: their MACs, unless the part knows better."""
        return (WidthChoice(counts, width.macs_fraction(counts)) for counts in self.candidate_counts(width))

    @property
    def chooses_per_round(self) -> bool:
        """Is the choice made once, before the model is pulled?"""
        return False

    @property
    def chooses_per_batch(self) -> bool:
        """Does every mini-batch choose how much it trains?"""
        return not self.chooses_per_round

    @property
    def averages_changed_only(self) -> bool:
        """Is the mean of a number over those updates only that changed it?"""
        return False

    def choose_width(self, carver: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        """How much to train in the next mini-batch, `budget` being a share of what the whole model costs."""
        return carver.affordable_choice(budget)

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        """Which units."""
        return random_units(rng)

    def create_sampler(self, width: SlimmableModel, seed: int) -> WidthSampler:
        return WidthSampler(self, width, seed)


class WholeModel(Submodel, frozen=True, kw_only=True, tag="whole"):
    """Every device trains the whole model."""


class FilterDropout(Submodel, frozen=True, kw_only=True, tag="filter-dropout"):
    """DISTREAL: each mini-batch trains the entry of an explored table that fits into the slot."""

    table: Annotated[
        ParetoTable | None, doc("File that `potluck explore` wrote; without it, one dropout rate for all layers.")
    ] = None
    units: Annotated[
        Literal["random", "leading"],
        doc("Keep random filters or the leading ones; with the latter, smaller sub-models lie inside larger ones."),
    ] = "random"
    mean: Annotated[
        Literal["all", "trained"], doc("Average each weight over all updates, or over those that trained it.")
    ] = "all"
    scaled: bool = True
    grid: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc("Keep multiples of this many filters; 8 suits the blocks in which convolutions compute."),
    ] = 1

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
        """By seconds: as measured, and in between at the place of the set that is nearest to the dearer entry."""
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

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return leading_units if self.units == "leading" else random_units(rng)


def _table_rates(table: ParetoTable, width: SlimmableModel) -> list[Rates]:
    """The table's vectors and the whole model, which a search that judges by noisy trainings may have left out."""
    names = tuple(part.name for part in width.sets)
    if table.sets != names:
        raise SettingError(
            "rounds.submodel.table", f"is for another model ({table.model}); make one with `potluck explore`"
        )
    return [*(entry.rates for entry in table.entries), (0.0,) * len(names)]


def _interpolate_rates(rates: Sequence[Rates], costs: Sequence[float]) -> Iterator[tuple[int, Rates]]:
    """The vectors and, where the next costs far more, mixtures of both: a table is short, and no budget should be lost.

    Each with the place of the vector that it is or comes after.
    """
    pairs = pairwise(zip(rates, costs, strict=True))
    for place, ((low, cheap), (high, dear)) in enumerate(pairs):
        parts = max(1, math.ceil(math.log(dear / cheap) / math.log(WIDEST_GAP)))
        for part in range(parts):
            yield place, tuple(one + (other - one) * part / parts for one, other in zip(low, high, strict=True))
    yield len(rates) - 1, rates[-1]


def _mixture_fraction(counts: Counts, low: Counts, high: Counts) -> float:
    """How far a mixture is from one size to the other, by the set that is furthest; rounding may have moved it."""
    far = ((now - one) / (other - one) for now, one, other in zip(counts, low, high, strict=True) if one != other)
    return min(1.0, max(far, default=0.0))


class UniformDropout(Submodel, frozen=True, kw_only=True, tag="uniform-dropout"):
    """Like `filter-dropout` with one dropout rate for all layers, so no table is needed."""

    scaled: bool = True
    grid: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc("Keep multiples of this many filters; 8 suits the blocks in which convolutions compute."),
    ] = 1

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept, self.grid) for kept in STEPS]


class _PerRoundSubmodel(Submodel, frozen=True, kw_only=True):
    capacity: Annotated[  # type: ignore[misc]
        Capacity, doc("Speed that a device is expected to have: nominal, or the mean or the least of its trace.")
    ] = "mean"
    levels: Annotated[tuple[Share, ...], doc("Widths to choose from, as fractions of the channels kept.")] = STEPS

    @property
    def chooses_per_round(self) -> bool:
        return True

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept) for kept in self.levels]


class FederatedDropout(_PerRoundSubmodel, frozen=True, kw_only=True, tag="federated-dropout"):
    """A random sub-model for each device and round (Caldas et al. 2018)."""

    scaled: bool = True


class HeteroFl(_PerRoundSubmodel, frozen=True, kw_only=True, tag="heterofl"):
    """The leading channels, as wide a slice as the device can afford (Diao et al. 2020)."""

    levels: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return leading_units


class FedRolex(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fedrolex"):
    """A slice of channels that moves on from round to round (Alam et al. 2022)."""

    levels: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return rolling_units(round)


class Fjord(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fjord"):
    """In each mini-batch the leading channels, of any width up to the device's own (Horváth et al. 2021)."""

    levels: tuple[Share, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    @property
    def chooses_per_batch(self) -> bool:
        return True

    def choose_width(self, carver: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        return carver.choices[int(rng.integers(carver.affordable_index(budget) + 1))]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return leading_units


class SmallModel(Submodel, frozen=True, kw_only=True, tag="small"):
    """One smaller network for every device and the coordinator."""

    share: Annotated[Share, doc("Largest cost of the small network, as a fraction of the whole model's MACs.")] = 0.33

    def largest_counts(self, width: SlimmableModel) -> Counts:
        """The counts of the largest network, all sets cut alike, that costs no more."""
        grid = [uniform_counts(width, kept / 100) for kept in range(1, 101)]
        return [grid[0], *(counts for counts in grid if width.macs_fraction(counts) <= self.share)][-1]


class WidthSampler:
    """A submodel part at work on one model."""

    def __init__(self, part: Submodel, width: SlimmableModel, seed: int) -> None:
        self.part = part
        self.slimmable = width
        self._seed = seed
        self.choices = sorted(dict.fromkeys(part.candidate_choices(width)), key=lambda step: step.cost_fraction)
        self._cost_fractions = [step.cost_fraction for step in self.choices]

    def affordable_index(self, budget: float) -> int:
        """The largest step within a budget (a share of what the whole model costs), else the smallest."""
        return max(bisect_right(self._cost_fractions, budget) - 1, 0)

    def affordable_choice(self, budget: float) -> WidthChoice:
        return self.choices[self.affordable_index(budget)]

    def submodel_for_round(self, device: str, round: int, capacity: float) -> RoundSubmodel | None:
        """What a device of this capacity is sent; None is everything. Coordinator and device get the same answer."""
        choice = self.affordable_choice(capacity)
        if not self.part.chooses_per_round or choice.counts == self.slimmable.full_counts:
            return None
        rng = seeds.child_generator(self._seed, "submodel", round, device)
        kept = choose_subsets(self.slimmable, choice.counts, self.part.unit_chooser(round, rng))
        return RoundSubmodel(choice, kept, self.slimmable.select_units(kept))

    def choose_width(self, budget: float, rng: np.random.Generator, capacity: float = 1.0) -> WidthChoice:
        """How much to train in the next mini-batch; where the round fixes it, `budget` counts for nothing."""
        return self.part.choose_width(self, capacity if self.part.chooses_per_round else budget, rng)

    def choose_units(
        self, choice: WidthChoice, rng: np.random.Generator, pulled: RoundSubmodel | None = None
    ) -> Subsets:
        """Which units to train in this mini-batch; within the pulled sub-model where there is one."""
        if pulled is not None and pulled.choice == choice:
            return pulled.subsets
        return choose_subsets(self.slimmable, choice.counts, self.part.unit_chooser(0, rng))

    def create_workspace(self, replica: ModelReplica) -> WidthWorkspace:
        """Where a thread trains sub-models of its replica."""
        return WidthWorkspace(self.slimmable, replica, scaled=self.part.scaled, static=self.part.static)
