from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import benchmark_catalogue as bench
from benchmarks import results_page
from benchmarks.benchmark import Benchmark, BenchmarkPiece
from benchmarks.benchmark_figures import Execution, Figure, Goal, PublishedValue, interval_of_repeats
from benchmarks.benchmark_report import redraw_report
from benchmarks.measured_code import code_digest
from benchmarks.result_files import outdated_reason, read_results
from benchmarks.results_page import render_results_page
from potluck.cli.bench_command import bench_command
from potluck.errors import UserError
from tests.benchmarks.made_up_results import benchmarks_with_figures, full_figures
from tests.cli.calling import ROOT

RESULTS = ROOT / "benchmarks" / "results"


def figure(
    name: str,
    measured: float,
    published: float | None = None,
    goal: Goal | None = None,
    executed: Execution = "simulated",
    repeats: Sequence[float] = (),
) -> Figure:
    source = None if published is None else PublishedValue(published, "Somebody 2020")
    interval = interval_of_repeats(repeats) if repeats else None
    return Figure(
        name=name, unit="x", measured=measured, executed=executed, published=source, goal=goal, interval=interval,
        tuned_alike=True,
    )  # fmt: skip


def write(folder: Path, name: str, *figures: Figure, mode: str = "full", **more: Any) -> None:
    """A result that is current, unless `more` says otherwise."""
    document = {
        "name": name, "summary": f"what {name} shows", "mode": mode, "command": f"potluck bench {name} --{mode}",
        "date": "2026-01-02T03:04:05+00:00", "figures": [figure.as_table() for figure in figures],
        "commit": "0123456789abcdef", "clean": True,
        "code": {"paths": ["Makefile"], "digest": code_digest(["Makefile"])},
        "load": {"before": 0.1, "mean": 0.5, "most": 1.5, "after": 0.2}, **more,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(document))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


def written(folder: Path) -> str:
    return render_results_page(folder, folder.parent / "docs" / "results.md")


def test_the_page_groups_results_into_better_ahead_reproduced_behind_and_missed(folder: Path) -> None:
    write(
        folder, "overlap",
        figure("largest", 50.0, 40.0, Goal("≥", 41.0), repeats=(49.0, 50.0, 51.0)),
        figure("  of one | network", 39.9, 40.0, Goal("≥", 41.0)),
        figure("planned", 50.0, 40.0, Goal("≥", 41.0), "forecast"),
        figure("slow", 20.0, 40.0, Goal("≥", 10.0)),
    )  # fmt: skip
    page = written(folder)
    assert "**3 of 4 goals are met.**" in page
    better, _, rest = page.partition("**Ahead of the published value, but not shown to be better**")
    assert "`overlap` largest: 50 x (47.52 to 52.48, n = 3), published 40 x" in better
    assert "`overlap` planned: 50 x, published 40 x. Lacking: it is forecast, not executed; 1 of at least 3" in rest
    assert "`overlap` largest: of one | network: 39.9 x, goal ≥ 41 x" in page.split("**Goal missed**")[1]
    assert "`overlap` slow: 20 x, published 40 x" in page.split("**Behind published**")[1].split("**Goal missed**")[0]
    assert "| &nbsp;&nbsp;of one \\| network | 40 x | ≥ 41 x | 39.9 x | simulated | **no** |" in page
    assert "- Published: Somebody 2020" in page
    assert "`potluck bench overlap --full` at commit 012345678 on 2026-01-02" in page
    assert "load average 0.1 before, 0.5 during (1.5 at most)" in page


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mode": "quick"}, "A quick run: a smaller workload."),
        ({"clean": False}, "Measured with changes that are not in commit 012345678."),
        ({"code": {"paths": ["Makefile"], "digest": "other"}}, "The code that it measures has changed since commit"),
        ({"commit": None, "code": None}, "Recorded before result files named their commit"),
    ],
)
def test_nothing_is_claimed_from_results_that_are_not_current(folder: Path, more: dict[str, Any], reason: str) -> None:
    write(folder, "overlap", figure("f", 50.0, 40.0, Goal("≥", 41.0), repeats=(49.0, 50.0, 51.0)), **more)
    page = written(folder)
    assert "**0 of 0 goals are met.**" in page
    assert "Better than" not in page
    assert reason in page.split("## Not current")[1]
    assert "| f | 40 x | 50 x (47.52 to 52.48, n = 3) | simulated |" in page.split("## Not current")[1]
    assert "50 x" not in page.split("## Not current")[0]


def test_a_reason_is_shown_only_while_its_goal_is_missed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_page, "_load_reasons", lambda: {"own": {"f": "Because."}})
    write(folder, "own", figure("f", 1.0, goal=Goal("≥", 2.0)), figure("g", 1.0, goal=Goal("≥", 2.0)))
    assert re.search(r"own` f: .* Because\.", written(folder))
    assert re.search(r"own` g: .* Not explained yet\.", written(folder))
    write(folder, "own", figure("f", 3.0, goal=Goal("≥", 2.0)))
    assert "Because" not in written(folder)


def test_benchmarks_without_results_are_listed_with_their_command(folder: Path) -> None:
    write(folder, "peers-own", figure("f", 1.0))
    page = written(folder)
    assert "## peers-own" in page
    for name in bench.benchmark_names():
        assert f"`potluck bench {name} --full`" in page.split("## Not measured yet")[1]


def test_image_links_are_relative_to_the_page(folder: Path) -> None:
    write(folder, "overlap", figure("f", 1.0))
    assert "![" not in written(folder)
    (folder / "overlap.svg").write_text("<svg/>")
    assert "![overlap](../results/overlap.svg)" in written(folder)


def test_results_follow_the_catalogue_order_and_may_be_infinite(folder: Path) -> None:
    for name in reversed(("anything", *bench.benchmark_names()[:2])):
        write(folder, name, figure("f", float("inf")))
    assert list(read_results(folder)) == [*bench.benchmark_names()[:2], "anything"]
    assert "| f |  |  | inf x | simulated |  |" in written(folder)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "x"}'])
def test_a_damaged_result_is_named(folder: Path, content: str) -> None:
    (folder / "broken.json").write_text(content)
    with pytest.raises(UserError, match=r"broken\.json is not a benchmark's result"):
        written(folder)


def test_the_committed_page_matches_the_committed_results() -> None:
    path = ROOT / "docs" / "results.md"
    assert path.read_text() == render_results_page(RESULTS, path), "run `make results`"


def test_current_results_have_the_figures_that_the_code_computes_from_their_pieces() -> None:
    for name, result in read_results(RESULTS).items():
        if name in bench.CATALOGUE and not outdated_reason(result):
            document = json.loads((RESULTS / f"{name}.json").read_text())
            redrawn = redraw_report(bench.find_benchmark(name), document).document
            assert redrawn == document, f"run `potluck bench {name} --redraw`"


def test_reasons_refer_to_figures_with_goals_that_a_full_run_computes() -> None:
    reasons = tomllib.loads((ROOT / "benchmarks/reasons.toml").read_text())
    benchmarks = benchmarks_with_figures()
    for name, explained in reasons.items():
        judged = {key: figure for key, figure in full_figures(benchmarks[name]).items() if figure.goal}
        assert explained.keys() <= {*judged, *(figure.name.strip() for figure in judged.values())}


def test_missing_data_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to get it, before anything is measured; `all` still runs the other benchmarks."""
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    _declare(monkeypatch, needing=("cifar10",), plain=())
    app = typer.Typer()
    app.command()(bench_command)
    single = CliRunner().invoke(app, ["needing", "--out", str(tmp_path)])
    assert isinstance(single.exception, UserError)
    assert "potluck bench needing needs the dataset cifar10" in str(single.exception)
    assert "cs.toronto.edu" in str(single.exception)
    together = CliRunner().invoke(app, ["all", "--out", str(tmp_path), "--results", str(tmp_path / "page.md")])
    assert together.exit_code == 2
    assert "skipped needing: potluck bench needing needs the dataset cifar10" in together.stderr
    assert [path.name for path in tmp_path.glob("*.json")] == ["plain.json"]
    assert "`potluck bench needing --full`" in (tmp_path / "page.md").read_text()


def _declare(monkeypatch: pytest.MonkeyPatch, **needs: tuple[str, ...]) -> None:
    """Benchmarks of one piece that need these datasets."""
    monkeypatch.setattr(bench, "CATALOGUE", {name: bench.BenchmarkEntry(f"bench_{name}", name) for name in needs})
    for name, sets in needs.items():
        benchmark = Benchmark(
            name, name, lambda context: [BenchmarkPiece("p", {}, dict)], lambda results: [figure("f", 1.0)],
            datasets=lambda context, sets=sets: sets,  # type: ignore[misc]
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, f"bench_{name}", cast(Any, SimpleNamespace(BENCHMARK=benchmark)))
