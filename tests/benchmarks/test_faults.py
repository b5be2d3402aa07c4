"""The frame of the `faults` benchmark: what it shows of a scenario, and when it measures one again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks import faults
from benchmarks.benchmark import BenchmarkContext
from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.benchmark_progress import PlainProgress
from benchmarks.benchmark_report import BenchmarkReport, figures_table
from benchmarks.benchmark_runner import run_benchmark
from benchmarks.faults import fault_scenario
from benchmarks.faults.command_process import wait_until
from benchmarks.faults.committed_rounds import CommitWatcher, read_commits
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext, find_scenario, find_scenarios
from benchmarks.faults.scenario_process import measure_apart, measure_scenario, scenario_figures
from benchmarks.faults.soak import SoakFaults, soak_script
from potluck.errors import UserError
from tests.cli.calling import ROOT


def scenario(
    measure: Callable[[ScenarioContext], Sequence[Figure]], missing: str | None = None, **sizes: Any
) -> FaultScenario:
    return FaultScenario(
        title="a thing", clause="It holds.", executed="measured", measure=measure, needs=lambda: missing, **sizes
    )


def lost(count: float) -> Figure:
    return Figure(name="lost", unit="", measured=count, goal=Goal("≤", 0), executed="measured")


def _measure_size(context: ScenarioContext) -> list[Figure]:
    assert context.folder.is_dir()
    return [lost(0), Figure(name="n", unit="", measured=context.size["n"], executed="measured")]


def _fail(context: ScenarioContext) -> list[Figure]:
    raise RuntimeError("it broke\nin two lines")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[BenchmarkReport, list[str]]]:
    """Run the benchmark with these scenarios, each measured in this process; returns what was measured, too."""
    measured: list[str] = []

    def run_with(*, resume: bool | None = None, **scenarios: FaultScenario) -> tuple[BenchmarkReport, list[str]]:
        def measure_here(name: str, quick: bool, seed: int) -> dict[str, Any]:
            measured.append(name)
            return measure_scenario(scenarios[name], quick, seed)

        monkeypatch.setattr(faults, "find_scenarios", lambda: scenarios)
        monkeypatch.setattr(faults, "measure_apart", measure_here)
        context, progress = BenchmarkContext(quick=True, seed=5), PlainProgress(StringIO())
        return run_benchmark(faults.BENCHMARK, context, tmp_path, progress, resume), measured

    return run_with


def test_a_missed_goal_is_shown_as_missed_and_a_met_one_as_met(run: Any) -> None:
    report, _ = run(good=scenario(lambda context: [lost(0)]), bad=scenario(lambda context: [lost(3)]))
    table = figures_table(report)
    assert [line.split()[-1] for line in table.splitlines() if line.startswith("a thing: lost")][:2] == ["yes", "NO"]
    assert [figure.measured for figure in report.missed_figures] == [3]


def test_a_scenario_that_raises_or_has_no_goal_misses_and_one_that_lacks_something_is_skipped(run: Any) -> None:
    report, _ = run(
        broken=scenario(_fail),
        aimless=scenario(lambda context: [Figure(name="n", unit="", measured=1.0, executed="measured")]),
        rootless=scenario(_fail, missing="needs root"),
    )
    assert [figure.meets_goal for figure in report.figures] == [False, False, None]
    assert "RuntimeError: it broke in two lines" in report.figures[0].note
    assert (report.figures[2].name, report.figures[2].note) == ("a thing: skipped", "needs root")


def test_a_scenario_is_measured_again_only_if_asked_or_if_it_failed(run: Any) -> None:
    scenarios = {"good": scenario(lambda context: [lost(0)]), "broken": scenario(_fail)}
    run(**scenarios)
    _, measured = run(**scenarios)
    assert measured == ["good", "broken", "broken"]
    _, measured = run(resume=False, **scenarios)
    assert measured[3:] == ["good", "broken"]


def test_changed_code_is_measured_again(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = {"good": scenario(lambda context: [lost(0)])}
    run(**scenarios)
    monkeypatch.setattr(faults, "source_digest", lambda name: "other")
    _, measured = run(**scenarios)
    assert measured == ["good", "good"]


def test_the_result_file_says_how_each_scenario_was_measured(run: Any, tmp_path: Path) -> None:
    report, _ = run(sized=scenario(_measure_size, quick={"n": 2}, full={"n": 9}))
    report.write_files(tmp_path)
    document = json.loads((tmp_path / "faults.json").read_text())
    piece = document["pieces"]["sized"]
    assert {"commit", "clean", "versions", "command", "machine"} <= document.keys()
    assert (piece["executed"], piece["seed"], piece["size"], piece["mode"]) == ("measured", 5, {"n": 2}, "quick")
    assert piece["commit"] == document["commit"]
    assert piece["clause"] == "It holds."
    assert piece["load"].keys() == {
        "before",
        "mean",
        "most",
        "after",
        "seconds",
        "own_processor_s",
        "machine_processor_s",
    }
    assert [figure["measured"] for figure in piece["figures"]] == [0, 2]


def test_every_scenario_is_complete() -> None:
    scenarios = find_scenarios()
    assert len({each.title for each in scenarios.values()}) == len(scenarios) > 1
    for name, each in scenarios.items():
        assert each.clause.endswith("."), name
        assert each.quick_s <= min(30, each.full_s), name
        assert each.quick.keys() == each.full.keys(), name
    assert sum(each.quick_s for each in scenarios.values()) <= 300
    with pytest.raises(UserError, match="no scenario 'nothing'; choose from"):
        find_scenario("nothing")


def test_a_scenario_whose_process_dies_or_hangs_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = scenario(lambda context: [lost(0)])
    module = ModuleType("benchmarks.faults.scenarios.absent")
    module.SCENARIO = dying  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)  # unknown to the new process, which therefore fails
    result = measure_apart("absent", quick=True, seed=0)
    assert "exit code 1" in result["error"]
    assert scenario_figures(result)[0].meets_goal is False


_MEASURING = """
import sys
from benchmarks.faults.scenario_process import measure_apart
measure_apart("soak_rounds", True, 0)
"""


def test_a_scenario_ends_with_the_benchmark_that_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", _MEASURING], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until("the scenario's process", lambda: bool(_children(parent.pid)), 120.0)
        children = _children(parent.pid)
        time.sleep(0.5)
    finally:
        parent.kill()
        parent.wait()
    wait_until("its end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in children), 60.0)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_digest_covers_the_scenario_and_the_package() -> None:
    assert fault_scenario.source_digest("soak_rounds") == fault_scenario.source_digest("soak_rounds")
    assert fault_scenario.source_digest("soak_rounds") != fault_scenario.source_digest("soak_pipeline")


# --- what was committed ----------------------------------------------------------------------------------------------


def _write(run: Path, *records: dict[str, Any]) -> None:
    run.mkdir(exist_ok=True)
    lines = [json.dumps({"node": "coordinator", **record}, separators=(",", ":")) for record in records]
    (run / "journal.jsonl").write_text("".join(f"{line}\n" for line in lines))


def _round(number: int, turn: int) -> dict[str, Any]:
    return {"name": "round", "fields": {"round": number, "devices": [["d-0", turn]]}}


def _batch(number: int) -> dict[str, Any]:
    return {"name": "committed", "fields": {"batch": number, "term": 1}}


def test_missing_and_repeated_rounds_and_updates_are_counted(tmp_path: Path) -> None:
    _write(tmp_path, _round(0, 1), _round(1, 2), _round(2, 3))
    assert read_commits(tmp_path)[1:] == (0, 0, 0)
    _write(tmp_path, _round(0, 1), _round(2, 2), _round(2, 3), _round(3, 3))
    assert (read_commits(tmp_path).skipped, read_commits(tmp_path).repeated) == (1, 2)


def test_rolled_back_batches_are_redone_and_not_doubled(tmp_path: Path) -> None:
    _write(tmp_path, _batch(0), _batch(1), _batch(2), {"name": "rolled back", "fields": {"to": 1}}, _batch(1))
    commits = read_commits(tmp_path)
    assert (len(commits.lines), commits.redone, commits.repeated, commits.skipped) == (2, 2, 0, 0)


def test_what_a_checkpoint_covered_at_a_death_must_be_found_later(tmp_path: Path) -> None:
    watcher = CommitWatcher(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "00000002.safetensors").touch()
    _write(tmp_path, _round(0, 1), _round(1, 2), _round(2, 3))
    watcher.note_death()
    _write(tmp_path, _round(0, 1), _round(1, 2), _round(2, 4))  # the third was not saved, so it may differ
    assert watcher.lost() == 0
    _write(tmp_path, _round(0, 1), _round(1, 5), _round(2, 6))
    assert watcher.lost() == 1


def test_a_standstill_lasts_until_the_run_is_further_than_before(tmp_path: Path) -> None:
    watcher = CommitWatcher(tmp_path)
    watcher.advances = [(10.0, 1), (11.0, 2), (15.0, 3), (16.0, 4)]
    assert watcher.longest_standstill_s(10.0, 17.0) == 4.0
    assert watcher.rate(11.0, 16.0) == pytest.approx(2 / 5)


def test_a_soak_script_follows_its_seed() -> None:
    soak = SoakFaults(100.0, kills=5, freezes=4, cuts=3, coordinator_deaths=2)
    names = ["a", "b"]
    assert soak_script(soak, names, 1) == soak_script(soak, names, 1) != soak_script(soak, names, 2)
    assert len(soak_script(soak, names, 1)) == 14
    assert max(event.at for event in soak_script(soak, names, 1)) < 90.0
