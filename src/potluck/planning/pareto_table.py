"""Pareto tables: sub-model configurations by rising cost, each better than all cheaper ones.

macs   ├────┼───┼───────┼──────────┤        best_within(budget) is the last entry within the budget,
                  ▲ budget                   or the first one if even that costs more
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from potluck.atomic_file import write_atomically
from potluck.errors import RunError
from potluck.settings import Settings

__all__ = ["Cost", "ParetoEntry", "ParetoTable", "hypervolume", "pareto_front"]

Cost = Literal["macs", "seconds"]
Rate = Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]


class ParetoEntry(Settings, frozen=True, kw_only=True):
    """One configuration: its cost, its gain, and the dropout rate of every channel set."""

    macs: Annotated[int, msgspec.Meta(gt=0)]
    gain: float
    rates: tuple[Rate, ...]


class ParetoTable(Settings, frozen=True, kw_only=True, dict=True):
    """The configurations of one model, sorted by cost.

    Where seconds were measured, `macs` is that fraction of `baseline_macs` which the seconds are of a full step.
    """

    model: str
    sets: tuple[str, ...]
    baseline_macs: Annotated[int, msgspec.Meta(gt=0)]
    entries: tuple[ParetoEntry, ...]
    cost: Cost = "macs"  # what was measured: MACs, or the seconds of a step

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
        """Index of the most expensive entry within the budget, or 0 if none is; a bisection that allocates nothing."""
        return max(bisect_right(self.__dict__["_costs"], budget_macs) - 1, 0)

    @property
    def cost_fractions(self) -> list[float]:
        """Cost of each entry as a fraction of the full model's."""
        return [entry.macs / self.baseline_macs for entry in self.entries]

    def to_json(self) -> str:
        return json.dumps(msgspec.to_builtins(self), indent=1)

    @staticmethod
    def from_trials(
        model: str,
        sets: Sequence[str],
        baseline_macs: int,
        trials: Sequence[tuple[int, float, Sequence[float]]],
        cost: Cost = "macs",
    ) -> ParetoTable:
        """The table of the trials (macs, gain, rates) that no other trial dominates."""
        kept = pareto_front([macs for macs, _, _ in trials], [gain for _, gain, _ in trials])
        entries = [ParetoEntry(macs=trials[i][0], gain=trials[i][1], rates=tuple(trials[i][2])) for i in kept]
        return ParetoTable(
            model=model, sets=tuple(sets), baseline_macs=baseline_macs, entries=tuple(entries), cost=cost
        )

    @staticmethod
    def load(path: Path) -> ParetoTable:
        try:
            return msgspec.json.decode(path.read_bytes(), type=ParetoTable)
        except OSError as error:
            raise RunError(
                f"cannot read the table {path}: {error.strerror}; create it with `potluck explore`"
            ) from None
        except msgspec.DecodeError as error:
            raise RunError(f"{path} is not a table of `potluck explore`: {error}") from None

    def save(self, path: Path) -> None:
        write_atomically(path, self.to_json().encode())


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Indices of the points that no other dominates, cheapest first; of equal points the first."""
    kept: list[int] = []
    for index in sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index], index)):
        if not kept or gains[index] > gains[kept[-1]]:
            kept.append(index)
    return kept


def hypervolume(costs: Sequence[float], gains: Sequence[float], max_cost: float, min_gain: float) -> float:
    """The area between the Pareto front and the reference point (max_cost, min_gain)."""
    area, best = 0.0, min_gain
    for index in pareto_front(costs, gains):
        if costs[index] < max_cost and gains[index] > best:
            area += (max_cost - costs[index]) * (gains[index] - best)
            best = gains[index]
    return area
