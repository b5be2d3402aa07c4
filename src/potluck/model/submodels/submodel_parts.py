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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
from torch import nn

from potluck.errors import SettingError
from potluck.model import weights_file
from potluck.model.layer_chain import LayerChain, trace_layers
from potluck.model.submodel_context import ClassBalance, SampleRules, SubmodelContext, SubmodelPlan, TrainedModel
from potluck.model.submodel_interface import SubmodelExtractor
from potluck.model.submodels.narrow_network import build_narrow_network, width_agnostic_graph
from potluck.model.submodels.narrow_replica import build_small_model
from potluck.model.submodels.slimmable_model import SlimmableModel
from potluck.model.submodels.unit_subsets import Chooser, leading_units, random_units, rolling_units, uniform_counts
from potluck.model.submodels.width_extractor import Capacity, build_width_extractor
from potluck.model.submodels.width_sampler import Counts, WidthChoice, WidthSampler
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Part

__all__ = ["Capacity", "Submodel", "WholeModel", "WidthSubmodelPart"]

Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
STEPS = tuple(step / 20 for step in range(2, 21))
WIDEST_GAP = 1.15  # between the costs of neighbours
Rates = Sequence[float]


class Submodel(Part, frozen=True, kw_only=True):
    """Which part of the model? This base trains the whole of it.

    The hooks are called in this order. Whatever a part does not override is as for the whole model.
    """

    capacity: ClassVar[Capacity] = "nominal"

    scaled: bool = False  # scale by 1/(share kept), as dropout does
    static: bool = False  # batch norm without running statistics

    # --- hooks: what a part asks of the model, the data, the plan and the end of a run --------------------------------

    def untrained_warning(self) -> str | None:
        """Why this part makes little sense for a newly initialised model, beginning with the key; None: it does."""
        return None

    def resolve(self, context: SubmodelContext, chain: LayerChain) -> Submodel:
        """The same part with every `auto` replaced by a value; `chain` is the whole model."""
        return self

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        """The model that the coordinator holds: the whole one, a smaller one, or the whole one taken apart."""
        return chain

    def sample_rules(self, context: SubmodelContext, chain: LayerChain) -> SampleRules:
        """What the split has to respect; `chain` is the adapted model. Not called where only time is modelled."""
        return SampleRules()

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> SubmodelExtractor | None:
        """What cuts sub-models out of the adapted model; None: every device trains all of it."""
        return build_width_extractor(self, self.capacity, context, model) if self.static else None

    def class_balance(self, extractor: SubmodelExtractor | None, device: str) -> ClassBalance | None:
        """Which classes a device balances against others in its mini-batches; None: it takes samples as they come."""
        return None

    def device_labels(self, devices: Sequence[str]) -> Mapping[str, str]:
        """What each device was given, in a few words for a table."""
        return {}

    def describe_plan(self, context: SubmodelContext, extractor: SubmodelExtractor | None) -> SubmodelPlan | None:
        """What `potluck plan` shows beside the rounds."""
        return None

    def save_model(
        self, module: nn.Module, extractor: SubmodelExtractor | None, folder: Path | None
    ) -> Mapping[str, Any]:
        """Write the trained model to the run's folder, if there is one; returns keys for the summary."""
        if folder is not None:
            weights_file.save_weights(module, folder / weights_file.FILE)
        return {}

    # --- width methods: which sizes there are, and when they are chosen ---------------------------------------------

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

    def choose_width(self, sampler: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        """How much to train in the next mini-batch, `budget` being a share of what the whole model costs."""
        return sampler.affordable_choice(budget)

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        """Which units."""
        return random_units(rng)

    def create_sampler(self, width: SlimmableModel, seed: int) -> WidthSampler:
        return WidthSampler(self, width, seed)


class WholeModel(Submodel, frozen=True, kw_only=True, tag="whole"):
    """Everything, always."""


class WidthSubmodelPart(Submodel, frozen=True, kw_only=True):
    """Fewer units of every channel set: a subclass says which sizes there are and which units are kept."""

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> SubmodelExtractor | None:
        return build_width_extractor(self, self.capacity, context, model)


class FilterDropout(WidthSubmodelPart, frozen=True, kw_only=True, tag="filter-dropout"):
    """DISTREAL: before each mini-batch the entry of an explored table that the device can afford."""

    table: ParetoTable | None = None  # in a job, the file that `potluck explore` wrote; without, one rate for all sets
    units: Literal["random", "leading"] = "random"  # leading: smaller ones lie inside larger ones, as in HeteroFL
    mean: Literal["all", "trained"] = "all"  # of a number: over all updates, or over those that changed it
    scaled: bool = True
    grid: Annotated[int, msgspec.Meta(ge=1)] = 1  # keep multiples of so many units

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


class UniformDropout(WidthSubmodelPart, frozen=True, kw_only=True, tag="uniform-dropout"):
    """The same with one rate for all sets, so that no table is needed."""

    scaled: bool = True
    grid: Annotated[int, msgspec.Meta(ge=1)] = 1  # keep multiples of so many units

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept, self.grid) for kept in STEPS]


class _PerRoundSubmodel(WidthSubmodelPart, frozen=True, kw_only=True):
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

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return leading_units


class FedRolex(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fedrolex"):
    """Alam et al. 2022: a window that rolls over the units as rounds go by."""

    levels: tuple[Share, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return rolling_units(round)


class Fjord(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fjord"):
    """Horváth et al. 2021: in each mini-batch a leading slice of any level up to the device's own."""

    levels: tuple[Share, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    @property
    def chooses_per_batch(self) -> bool:
        return True

    def choose_width(self, sampler: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        return sampler.choices[int(rng.integers(sampler.affordable_index(budget) + 1))]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> Chooser:
        return leading_units


class SmallModel(Submodel, frozen=True, kw_only=True, tag="small"):
    """One smaller network for everyone, the server included; `share` is what it may cost of the whole one's MACs."""

    share: Share = 0.33

    def largest_counts(self, width: SlimmableModel) -> Counts:
        """The counts of the largest network, all sets cut alike, that costs no more."""
        grid = [uniform_counts(width, kept / 100) for kept in range(1, 101)]
        return [grid[0], *(counts for counts in grid if width.macs_fraction(counts) <= self.share)][-1]

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        width = SlimmableModel(chain)
        counts = self.largest_counts(width)
        if any(param.is_meta for param in chain.module.parameters()):
            return trace_layers(
                build_narrow_network(width, width_agnostic_graph(width), counts), chain.shape, dtype=chain.dtype
            )
        return trace_layers(build_small_model(width, counts), chain.shape, dtype=chain.dtype)
