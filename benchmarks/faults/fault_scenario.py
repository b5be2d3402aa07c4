"""What a scenario of the `faults` benchmark declares, and where scenarios are found.

A scenario is one file in `scenarios/` with `SCENARIO = FaultScenario(...)`; nothing else has to know about it.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Execution, Figure
from benchmarks.measured_code import LIVE_PACKAGE, code_digest, code_of_benchmark
from potluck.errors import UserError

__all__ = ["FaultScenario", "ScenarioContext", "find_scenario", "find_scenarios", "source_digest"]

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ScenarioContext:
    """What one measurement is given: its size, the seed of all its random numbers, and an empty folder."""

    size: Mapping[str, Any]
    seed: int
    folder: Path

    def show(self, activity: str) -> None:
        """Print a line of progress."""
        print(f"    {activity}", file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class FaultScenario:
    """Something that must not break a run, and how it is tried.

    `measure` returns figures, at least one of them with a goal. An exception counts as a missed goal. `needs` says in
    one line what this machine lacks to try it (root, a server), or None; the scenario is then shown as skipped.
    """

    title: str
    clause: str  # the promise that it shows, in a sentence
    executed: Execution  # live, simulated, or measured by calls in one process
    measure: Callable[[ScenarioContext], Sequence[Figure]]
    quick: Mapping[str, Any] = field(default_factory=dict)  # sizes; quick ones take 10 to 15 s
    full: Mapping[str, Any] = field(default_factory=dict)
    quick_s: float = 10.0
    full_s: float = 60.0
    needs: Callable[[], str | None] = lambda: None

    def size(self, quick: bool) -> Mapping[str, Any]:
        return self.quick if quick else self.full

    def expected_s(self, quick: bool) -> float:
        return self.quick_s if quick else self.full_s


def find_scenarios() -> dict[str, FaultScenario]:
    """All scenarios by the name of their file, sorted."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(_FOLDER / "scenarios")]))
    return {name: find_scenario(name) for name in names}


def find_scenario(name: str) -> FaultScenario:
    try:
        scenario: FaultScenario = importlib.import_module(f"benchmarks.faults.scenarios.{name}").SCENARIO
    except ModuleNotFoundError as error:
        if error.name != f"benchmarks.faults.scenarios.{name}":
            raise
        known = ", ".join(module.name for module in pkgutil.iter_modules([str(_FOLDER / "scenarios")]))
        raise UserError(f"there is no scenario {name!r}; choose from {known}") from None
    return scenario


def source_digest(name: str) -> str:
    """A digest of the code that a scenario measures: the package, this benchmark's shared files and its own."""
    shared = code_of_benchmark("benchmarks.faults", (*LIVE_PACKAGE, "!benchmarks/faults/scenarios"))
    return code_digest(shared) + code_digest((_scenario_path(name),))


def _scenario_path(name: str) -> str:
    return f"benchmarks/faults/scenarios/{name}.py"
