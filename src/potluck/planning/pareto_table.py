"""What a device can afford, from a table of trade-offs: dearer entries further down, each better than all before it.

macs   ├────┼───┼───────┼──────────┤        pick(budget) is the last entry that costs no more;
                  ▲ budget                   where even the first costs more, the first
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from potluck.errors import RunError
from potluck.settings import Settings, doc

__all__ = ["Cost", "ParetoEntry", "ParetoTable", "hypervolume", "pareto_front"]

Cost = Literal["macs", "seconds"]
Rate = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class ParetoEntry(Settings, frozen=True, kw_only=True):
    """One trade-off: what it costs, what it brings, and the rate at which every channel set is dropped."""

    macs: Annotated[int, msgspec.Meta(gt=0), doc("Cost of a step per sample, in MACs.")]
    gain: Annotated[float, doc("What training this sub-model gained in the exploration.")]
    rates: Annotated[tuple[Rate, ...], doc("Fraction of each channel set that is dropped.")]


class ParetoTable(Settings, frozen=True, kw_only=True, dict=True):
    """Trade-offs of one model, sorted by cost.

    Where seconds were measured, `macs` are as large a share of `baseline_macs` as the seconds are of a whole step's.
    """

    model: Annotated[str, doc("Model for which the table was explored.")]
    sets: Annotated[tuple[str, ...], doc("Names of the model's channel sets.")]
    baseline_macs: Annotated[int, msgspec.Meta(gt=0), doc("Cost of the whole model, in MACs.")]
    entries: Annotated[tuple[ParetoEntry, ...], doc("The sub-models, cheapest first.")]
    cost: Annotated[Cost, doc("What was weighed: counted MACs or the measured time of a step.")] = "macs"

    def __post_init__(self) -> None:
        if not self.entries:
            raise ValueError("a table needs at least one entry")
        if any(len(entry.rates) != len(self.sets) for entry in self.entries):
            raise ValueError(f"every entry needs {len(self.sets)} rates, one for each of `sets`")
        costs = [entry.macs for entry in self.entries]
        if costs != sorted(costs):
            raise ValueError("entries must be sorted by `macs`")
        self.__dict__["_costs"] = costs

    def best_within(self, budget_macs: float) -> int:
        """The dearest entry within the budget, else the cheapest; a bisection that allocates nothing."""
        return max(bisect_right(self.__dict__["_costs"], budget_macs) - 1, 0)

    @property
    def cost_fractions(self) -> list[float]:
        """What the entries cost of the whole model."""
        return [entry.macs / self.baseline_macs for entry in self.entries]

    def to_json(self) -> str:
        return json.dumps(msgspec.to_builtins(self), indent=1)

    @staticmethod
    def from_trials(
        model: str,
        sets: Sequence[str],
        baseline_macs: int,
        seen: Sequence[tuple[int, float, Sequence[float]]],
        cost: Cost = "macs",
    ) -> ParetoTable:
        """The table of those (macs, gain, rates) that no other dominates."""
        kept = pareto_front([macs for macs, _, _ in seen], [gain for _, gain, _ in seen])
        entries = [ParetoEntry(macs=seen[i][0], gain=seen[i][1], rates=tuple(seen[i][2])) for i in kept]
        return ParetoTable(
            model=model, sets=tuple(sets), baseline_macs=baseline_macs, entries=tuple(entries), cost=cost
        )

    @staticmethod
    def load(path: Path) -> ParetoTable:
        try:
            return msgspec.json.decode(path.read_bytes(), type=ParetoTable)
        except OSError as error:
            raise RunError(f"cannot read the table {path}: {error.strerror}; make it with `potluck explore`") from None
        except msgspec.DecodeError as error:
            raise RunError(f"{path} is no table of `potluck explore`: {error}") from None

    def save(self, path: Path) -> None:
        aside = path.with_name(path.name + ".part")
        aside.write_text(self.to_json(), encoding="utf-8")
        aside.replace(path)


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Those that no other beats (no dearer, no worse, and better in one), cheapest first; of equals the first."""
    kept: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index], index)):
        if not kept or gains[index] > gains[kept[-1]]:
            kept.append(index)
    return kept


def hypervolume(costs: Sequence[float], gains: Sequence[float], dearest: float, worst: float) -> float:
    """The area that a front covers between it and the corner of the dearest cost and the worst gain."""
    area, best = 0.0, worst
    for index in pareto_front(costs, gains):
        if costs[index] < dearest and gains[index] > best:
            area += (dearest - costs[index]) * (gains[index] - best)
            best = gains[index]
    return area
