"""Runs one scenario in a process of its own, with a time limit, and records how it was measured.

    measure_apart ──▶ python -m benchmarks.faults NAME --result FILE ──▶ measure_scenario ──▶ FILE

A scenario that raises or takes too long becomes a missed goal; one that cannot be tried here is shown as skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from benchmarks.benchmark_figures import Execution, Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext, find_scenario
from benchmarks.machine_info import LoadSampler, describe_revision

__all__ = ["measure_apart", "measure_scenario", "scenario_figures"]

_CHECKOUT = Path(__file__).parents[2]
_PATIENCE = 8.0  # times the expected seconds, for a busy machine
_START_S = 120.0
_CLEANUP_S = 30.0


def measure_apart(name: str, quick: bool, seed: int) -> dict[str, Any]:
    """Measure a scenario in a new process; whatever happens to that process, there is a result."""
    limit_s = _START_S + _PATIENCE * find_scenario(name).expected_s(quick)
    with tempfile.TemporaryDirectory(prefix="potluck-faults-") as folder:
        path = Path(folder) / "result.json"
        size = "--quick" if quick else "--full"
        options = [size, "--seed", str(seed), "--result", str(path), "--parent", str(os.getpid())]
        command = [sys.executable, "-m", "benchmarks.faults", name, *options]
        search = os.pathsep.join([str(_CHECKOUT), *sys.path])
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search}, start_new_session=True)
        try:
            process.wait(limit_s)
            ended = f"its process ended with exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"it did not end within {limit_s:.0f} s"
        finally:
            _end_process(process)
        if path.exists():
            result: dict[str, Any] = json.loads(path.read_text())
            return result
    return _describe(find_scenario(name), quick, seed) | {"error": ended, "figures": []}


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """Let it clean up after itself first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_CLEANUP_S)


def measure_scenario(scenario: FaultScenario, quick: bool, seed: int) -> dict[str, Any]:
    """Measure in this process: the figures, or why there are none, with the load meanwhile and the commit."""
    described = _describe(scenario, quick, seed)
    if missing := scenario.needs():
        return described | {"skipped": missing, "figures": []}
    error: dict[str, str] = {}
    figures: Sequence[Figure] = ()
    with LoadSampler() as load, tempfile.TemporaryDirectory(prefix="potluck-faults-") as folder:
        try:
            figures = scenario.measure(ScenarioContext(scenario.size(quick), seed, Path(folder)))
        except Exception as raised:
            traceback.print_exc()
            error = {"error": " ".join(f"{type(raised).__name__}: {raised}".split())}
        meanwhile = load.summary()
    return {
        **described,
        **error,
        "seconds": meanwhile["seconds"],
        "load": meanwhile,
        "figures": [figure.as_table() for figure in figures],
    }


def _describe(scenario: FaultScenario, quick: bool, seed: int) -> dict[str, Any]:
    return {
        "title": scenario.title,
        "clause": scenario.clause,
        "executed": scenario.executed,
        "mode": "quick" if quick else "full",
        "size": dict(scenario.size(quick)),
        "seed": seed,
        **describe_revision(),
    }


def scenario_figures(result: Mapping[str, Any]) -> list[Figure]:
    """The rows of one scenario: its title with the first figure, the others below it."""
    title, how = str(result["title"]), cast(Execution, result["executed"])
    if reason := result.get("skipped"):
        return [Figure(name=f"{title}: skipped", unit="", measured=0.0, executed=how, note=str(reason))]
    load = f", load {result['load']['mean']:g}" if "load" in result else ""
    note = f"{result['clause']} ({how}{load})"
    if error := result.get("error"):
        return [_missed_figure(f"{title}: ends", how, f"{error}; {note}")]
    figures = [_without_verdict(table) for table in result["figures"]]
    if not any(figure.goal for figure in figures):
        return [_missed_figure(f"{title}: has a goal", how, note)]
    first = figures[0]
    head = msgspec.structs.replace(
        first, name=f"{title}: {first.name}", note="; ".join(filter(None, [first.note, note]))
    )
    return [head, *(msgspec.structs.replace(figure, name=f"  {figure.name.strip()}") for figure in figures[1:])]


def _missed_figure(name: str, executed: Execution, note: str) -> Figure:
    return Figure(name=name, unit="", measured=0.0, executed=executed, goal=Goal("≥", 1.0), note=note)


def _without_verdict(table: Mapping[str, Any]) -> Figure:
    return msgspec.convert({key: value for key, value in table.items() if key != "held"}, Figure)
