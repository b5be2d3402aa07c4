"""The exploration of a network: how long it takes, and what it finds beyond one rate for all layers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.dropout.dropout_methods import EXPLORED, METHODS
from benchmarks.dropout.dropout_workload import SETTINGS, DropoutSetting, rate_table_path, task_table
from potluck.explore import Exploration, ExplorationResult, explore
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import decode_settings
from potluck.task import TaskSettings

__all__ = ["largest_shortfall", "measure_exploration", "write_pareto_tables"]


def measure_exploration(setting: DropoutSetting, settings: Exploration, data: Path | None) -> dict[str, Any]:
    """Everything is trained anew: nothing is taken from an earlier exploration."""
    began = time.perf_counter()
    found = explore(decode_settings(task_table(setting), TaskSettings, "task"), settings, root=data)
    return {
        "minutes": (time.perf_counter() - began) / 60,
        "hypervolume": found.hypervolume,
        "uniform_hypervolume": found.uniform_hypervolume,
        "evaluations": found.evaluations,
        "behind": largest_shortfall(found),
        "correlation": found.correlation,
        "front": _front_points(found.table),
        "uniform": _front_points(found.uniform),
    }


def largest_shortfall(found: ExplorationResult) -> float:
    """By how much the front gains less than a uniform vector that costs the same or more, at most."""
    return max(
        entry.gain - found.table.entries[found.table.best_within(entry.macs)].gain for entry in found.uniform.entries
    )


def _front_points(table: ParetoTable) -> list[tuple[float, float]]:
    return [(entry.macs / table.baseline_macs, entry.gain) for entry in table.entries]


def write_pareto_tables(settings: Exploration, data: Path | None) -> None:
    """Explore anew what the federated part uses: each network with each way to keep units."""
    networks = {setting.table: setting for setting in reversed(list(SETTINGS.values())) if setting.table}
    for setting in networks.values():
        for method in EXPLORED:
            units = METHODS[method].submodel.get("units", "random")
            chosen = msgspec.structs.replace(settings, units=units, static=True)
            found = explore(decode_settings(task_table(setting), TaskSettings, "task"), chosen, root=data)
            found.table.save(Path(rate_table_path(setting, method)))
