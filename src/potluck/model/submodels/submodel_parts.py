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
    lora-rank           what fits         the same                       leading          fixed levels (lora_rank.py)

A budget is a fraction of the whole model's cost: of its MACs, or of a step's seconds if the table was measured in them.
Choosing how much to train needs no tensors and can happen at any time; the units are chosen where the tensors are. What
fits into a round must be known before it begins: `capacity` says for which speed of the device, the nominal one or
the mean or lowest of its trace.
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
from potluck.model.submodels.slimmable_model import (
    SlimmableModel,
    UnitChooser,
    leading_units,
    random_units,
    rolling_units,
    uniform_counts,
)
from potluck.model.submodels.width_extractor import Capacity, build_width_extractor
from potluck.model.submodels.width_sampler import Counts, WidthChoice, WidthSampler
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import Part, doc

__all__ = ["Capacity", "Submodel", "WholeModel", "WidthSubmodelPart"]

Fraction = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
STEPS = tuple(step / 20 for step in range(2, 21))
WIDEST_GAP = 1.15  # between the costs of adjacent choices
Rates = Sequence[float]


class Submodel(Part, frozen=True, kw_only=True):
    """Selects the sub-model that a device trains; this base trains the whole model.

    The hooks are called in this order. Whatever a part does not override is as for the whole model.
    """

    capacity: ClassVar[Capacity] = "nominal"
    uses_slot: ClassVar[bool] = True  # whether it depends on the time that a device has for a mini-batch

    scaled: Annotated[bool, doc("Scale the kept weights by 1 / (fraction kept), as dropout does.")] = False
    static: Annotated[
        bool, doc("Use batch norm without running statistics; they are computed from training data before evaluation.")
    ] = False

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
            weights_file.save_weights(module, folder / weights_file.WEIGHTS_FILE)
        return {}

    # --- width methods: which sizes there are, and when they are chosen ---------------------------------------------

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

    @property
    def slices_updates(self) -> bool:
        """Whether an update covers only the widest of the sub-models that its mini-batches trained."""
        return False

    @property
    def slices_frozen(self) -> bool:
        """Whether sub-models hold slices of frozen weights too, which then travel with the trained ones."""
        return self.static

    @property
    def exploration_settings(self) -> Mapping[str, Any]:
        """Which units `potluck explore` keeps and how, where this part determines it."""
        return {}

    def choose_width(self, sampler: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        """How much to train in the next mini-batch; `budget` is a fraction of the whole model's cost."""
        return sampler.affordable_choice(budget)

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        """A function that chooses the units to keep."""
        return random_units(rng)

    def create_sampler(self, width: SlimmableModel, seed: int) -> WidthSampler:
        return WidthSampler(self, width, seed)


class WholeModel(Submodel, frozen=True, kw_only=True, tag="whole"):
    """Every device trains the whole model."""

    uses_slot: ClassVar[bool] = False

    def unused_keys(self) -> Mapping[str, str]:
        return {"scaled": "where all weights are kept"}


class WidthSubmodelPart(Submodel, frozen=True, kw_only=True):
    """Fewer units of every channel set: a subclass says which sizes there are and which units are kept."""

    def build_extractor(self, context: SubmodelContext, model: TrainedModel) -> SubmodelExtractor | None:
        extractor = build_width_extractor(self, self.capacity, context, model)
        if not extractor.channel_sets:
            raise SettingError(
                "rounds.submodel",
                f"{type(model.chain.module).__name__} has no channels, attention heads or feed-forward units that can "
                "be dropped; train the whole model (submodel = 'whole')",
            )
        return extractor

    @property
    def slices_frozen(self) -> bool:
        return True


class FilterDropout(WidthSubmodelPart, frozen=True, kw_only=True, tag="filter-dropout"):
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

    @property
    def slices_updates(self) -> bool:
        return self.units == "leading"

    @property
    def exploration_settings(self) -> Mapping[str, Any]:
        return {"units": self.units, "scaled": self.scaled, "static": self.static, "grid": self.grid}

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
        cost_of: dict[Counts, float] = {}
        for index, vector in _interpolate_rates(rates, costs):
            counts, after = width.kept_counts(vector, self.grid), min(index + 1, len(sizes) - 1)
            reached = _mixture_fraction(counts, sizes[index], sizes[after])
            cost = costs[index] + (costs[after] - costs[index]) * reached
            cost_of[counts] = max(cost, cost_of.get(counts, 0.0))
        cost_of.update(zip(sizes, costs, strict=True))
        return [WidthChoice(counts, cost) for counts, cost in cost_of.items()]

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
    for index, ((low, cheap), (high, dear)) in enumerate(pairs):
        parts = max(1, math.ceil(math.log(dear / cheap) / math.log(WIDEST_GAP)))
        for part in range(parts):
            yield index, tuple(one + (other - one) * part / parts for one, other in zip(low, high, strict=True))
    yield len(rates) - 1, rates[-1]


def _mixture_fraction(counts: Counts, low: Counts, high: Counts) -> float:
    """How far a mixture is between two sizes, by the set that is furthest; rounding may have moved it."""
    far = ((now - one) / (other - one) for now, one, other in zip(counts, low, high, strict=True) if one != other)
    return min(1.0, max(far, default=0.0))


class UniformDropout(WidthSubmodelPart, frozen=True, kw_only=True, tag="uniform-dropout"):
    """Like `filter-dropout` with one dropout rate for all layers, so no table is needed."""

    scaled: bool = True
    grid: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc("Keep multiples of this many filters; 8 suits the blocks in which convolutions compute."),
    ] = 1

    @property
    def exploration_settings(self) -> Mapping[str, Any]:
        return {"scaled": self.scaled, "static": self.static, "grid": self.grid}

    def candidate_counts(self, width: SlimmableModel) -> Sequence[Counts]:
        return [uniform_counts(width, kept, self.grid) for kept in STEPS]


class _PerRoundSubmodel(WidthSubmodelPart, frozen=True, kw_only=True):
    capacity: Annotated[  # type: ignore[misc]
        Capacity, doc("Speed that a device is expected to have: nominal, or the mean or the least of its trace.")
    ] = "mean"
    levels: Annotated[tuple[Fraction, ...], doc("Widths to choose from, as fractions of the channels kept.")] = STEPS

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

    levels: tuple[Fraction, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units


class FedRolex(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fedrolex"):
    """A slice of channels that moves on from round to round (Alam et al. 2022)."""

    levels: tuple[Fraction, ...] = (0.0625, 0.125, 0.25, 0.5, 1.0)
    static: bool = True

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return rolling_units(round)


class Fjord(_PerRoundSubmodel, frozen=True, kw_only=True, tag="fjord"):
    """In each mini-batch the leading channels, of any width up to the device's own (Horváth et al. 2021)."""

    levels: tuple[Fraction, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    @property
    def chooses_per_batch(self) -> bool:
        return True

    def choose_width(self, sampler: WidthSampler, budget: float, rng: np.random.Generator) -> WidthChoice:
        return sampler.choices[int(rng.integers(sampler.affordable_index(budget) + 1))]

    def unit_chooser(self, round: int, rng: np.random.Generator) -> UnitChooser:
        return leading_units


class SmallModel(Submodel, frozen=True, kw_only=True, tag="small"):
    """One smaller network for every device and the coordinator."""

    uses_slot: ClassVar[bool] = False

    share: Annotated[Fraction, doc("Largest cost of the small network, as a fraction of the whole model's MACs.")] = (
        0.33
    )

    def unused_keys(self) -> Mapping[str, str]:
        return {"scaled": "where no weights are dropped during training"}

    def largest_counts(self, width: SlimmableModel) -> Counts:
        """The counts of the largest network within `share`, with the same fraction of every set."""
        grid = [uniform_counts(width, kept / 100) for kept in range(1, 101)]
        return [grid[0], *(counts for counts in grid if width.macs_fraction(counts) <= self.share)][-1]

    def adapt_model(self, context: SubmodelContext, chain: LayerChain) -> LayerChain:
        width = SlimmableModel(chain)
        counts = self.largest_counts(width)
        if any(param.is_meta for param in chain.module.parameters()):
            return trace_layers(build_narrow_network(width, width_agnostic_graph(width), counts), chain.inputs)
        return trace_layers(build_small_model(width, counts), chain.inputs)
