"""The exploration of a network: how long it takes, and what it finds beyond one rate for all layers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from potluck.bench.dropout.methods import EXPLORED, METHODS
from potluck.bench.dropout.workload import SETTINGS, Setting, table_of, task_of
from potluck.explore import Exploration, Findings, explore
from potluck.planning.pareto import ParetoTable
from potluck.settings import decode
from potluck.task import TaskSettings

__all__ = ["behind", "measure", "write_tables"]


def measure(setting: Setting, settings: Exploration, data: Path | None) -> dict[str, Any]:
    """Everything is trained anew: nothing is taken from an earlier exploration."""
    began = time.perf_counter()
    found = explore(decode(task_of(setting), TaskSettings, "task"), settings, root=data)
    return {
        "minutes": (time.perf_counter() - began) / 60,
        "hypervolume": found.hypervolume,
        "uniform_hypervolume": found.uniform_hypervolume,
        "evaluations": found.evaluations,
        "behind": behind(found),
        "correlation": found.correlation,
        "front": _points(found.table),
        "uniform": _points(found.uniform),
    }


def behind(found: Findings) -> float:
    """By how much the front gains less than a uniform vector that costs the same or more, at most."""
    return max(entry.gain - found.table.entries[found.table.pick(entry.macs)].gain for entry in found.uniform.entries)


def _points(table: ParetoTable) -> list[tuple[float, float]]:
    return [(entry.macs / table.baseline_macs, entry.gain) for entry in table.entries]


def write_tables(settings: Exploration, data: Path | None) -> None:
    """Explore anew what the federated part uses: each network with each way to keep units."""
    networks = {setting.table: setting for setting in reversed(list(SETTINGS.values())) if setting.table}
    for setting in networks.values():
        for method in EXPLORED:
            units = METHODS[method].submodel.get("units", "random")
            chosen = msgspec.structs.replace(settings, units=units, static=True)
            found = explore(decode(task_of(setting), TaskSettings, "task"), chosen, root=data)
            found.table.save(Path(table_of(setting, method)))
