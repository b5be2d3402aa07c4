from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import benchmark_catalogue as bench
from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import (
    Figure,
    Goal,
    PublishedValue,
    figure_of_repeats,
    format_value,
    interval_of_repeats,
)
from benchmarks.benchmark_progress import PlainProgress, RemainingTime
from benchmarks.benchmark_report import BenchmarkReport, figures_table
from benchmarks.benchmark_runner import run_benchmark
from benchmarks.measured_code import code_digest
from potluck.cli import main
from potluck.cli.bench_command import bench_command
from potluck.errors import UserError
from potluck.report.svg_chart import Chart, ChartSeries, draw_charts


class Counting:
    """A benchmark of three pieces that counts how often each is measured; the third may fail."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.broken = False
        self.BENCHMARK = Benchmark("counting", "counts", self.pieces, self.figures, self.charts, ("a note",))

    def pieces(self, context: BenchmarkContext) -> list[BenchmarkPiece]:
        size = 1 if context.quick else 10
        return [BenchmarkPiece(f"p{n}", {"n": n, "size": size}, lambda n=n: self.measure(n, size)) for n in range(3)]

    def measure(self, n: int, size: int) -> dict[str, int]:
        if self.broken and n == 2:
            raise KeyboardInterrupt
        self.measured.append(f"p{n}")
        return {"value": n * size}

    def figures(self, results: Results) -> list[Figure]:
        values = [result["value"] for result in results.values()]
        met = Figure(
            name="sum",
            unit="s",
            measured=sum(values),
            published=PublishedValue(7, "somebody"),
            goal=Goal("≥", 3),
            executed="measured",
        )
        return [met, figure_of_repeats("each", "x", values, goal=Goal("≤", 0.5), executed="measured")]

    def charts(self, results: Results) -> list[Chart]:
        return [Chart("values", [ChartSeries("v", [1.0, 2.0], [1, 10])], "y", "x", x_scale="log")]


@pytest.fixture
def counting() -> Counting:
    return Counting()


def _run(
    counting: Counting, folder: Path, *, quick: bool = True, resume: bool = False, seed: int = 0
) -> BenchmarkReport:
    return run_benchmark(counting.BENCHMARK, BenchmarkContext(quick, seed), folder, PlainProgress(StringIO()), resume)


@pytest.fixture
def command(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    monkeypatch.setattr(bench, "CATALOGUE", {"counting": bench.BenchmarkEntry("a_counting_bench", "counts")})
    monkeypatch.setitem(sys.modules, "a_counting_bench", cast(ModuleType, counting))
    app = typer.Typer()
    app.command("bench")(bench_command)
    return app


def test_a_goal_is_judged_in_its_direction() -> None:
    assert Goal("≥", 2.0).is_met_by(2.0)
    assert not Goal("≥", 2.0).is_met_by(1.99)
    assert Goal("≤", 2.0).is_met_by(2.0)
    assert not Goal("≤", 2.0).is_met_by(2.01)
    assert Figure(name="f", unit="s", measured=1.0, executed="measured").meets_goal is None


def test_repeats_give_their_mean_and_its_t_interval() -> None:
    """Checked with R: t.test(c(5, 1, 3))."""
    figure = figure_of_repeats("f", "s", [5.0, 1.0, 3.0], goal=Goal("≤", 3.0), executed="measured")
    assert figure.interval is not None
    assert (figure.measured, figure.repeats) == (3.0, 3)
    assert figure.interval.low == pytest.approx(-1.968, abs=2e-3)
    assert figure.interval.high == pytest.approx(7.968, abs=2e-3)
    assert figure.as_table()["held"] is True
    assert figure_of_repeats("f", "s", [2.0], executed="measured").measured_text == "2 s"
    assert interval_of_repeats([1.0, float("inf")]).high == float("inf")
    assert interval_of_repeats(list(range(101))).high == pytest.approx(50 + 5.785, abs=2e-2)


def test_values_are_rounded_to_four_digits() -> None:
    assert [format_value(value) for value in (0.0, 0.06068, 41.9, 939_600.0)] == ["0", "0.06068", "41.9", "939,600"]


def test_a_result_file_records_how_it_was_measured(counting: Counting, tmp_path: Path) -> None:
    paths = _run(counting, tmp_path).write_files(tmp_path)
    document = json.loads((tmp_path / "counting.json").read_text())
    assert [path.name for path in paths] == ["counting.json", "counting.svg"]
    assert document["mode"] == "quick"
    assert document["command"] == "potluck bench counting --quick --seed 0"
    assert {"python", "potluck", "torch", "numpy"} <= set(document["versions"])
    assert document["machine"]["cores"] >= 1
    assert document["machine"]["memory_bytes"] > 0
    assert [figure["held"] for figure in document["figures"]] == [True, False]
    assert [figure["executed"] for figure in document["figures"]] == ["measured", "measured"]
    assert document["figures"][1]["interval"]["repeats"] == 3
    assert document["pieces"]["p2"] == {"value": 2}
    assert document["commit"] == document["measurements"]["p0"]["commit"]
    assert document["code"]["digest"] == code_digest(document["code"]["paths"])
    assert document["code"]["paths"] == ["src/potluck", "tests/benchmarks/test_harness.py"]
    assert document["load"].keys() == {"before", "mean", "most", "after"}
    assert document["measurements"]["p0"]["load"]["own_processor_s"] >= 0


def test_a_result_is_clean_only_if_every_piece_is(counting: Counting, tmp_path: Path) -> None:
    _run(counting, tmp_path)
    path = tmp_path / "unfinished" / "counting-quick.jsonl"
    first, *others = path.read_text().splitlines()
    content = json.loads(first)
    for clean, expected in ((True, None), (False, False)):
        content["measurement"]["clean"] = clean
        path.write_text("\n".join([json.dumps(content), *others]))
        document = _run(counting, tmp_path, resume=True).document
        assert expected is None or document["clean"] is expected


def test_the_table_has_all_columns_and_says_that_it_was_quick(counting: Counting, tmp_path: Path) -> None:
    quick, full = (figures_table(_run(counting, tmp_path, quick=quick)) for quick in (True, False))
    assert quick.count("QUICK") == 2
    assert "QUICK" not in full
    header, _, first, second = quick.splitlines()[3:7]
    assert header.split() == ["figure", "published", "goal", "measured", "executed", "met"]
    assert re.split(r"\s{2,}", first) == ["sum", "7 s", "≥ 3 s", "3 s", "measured", "yes"]
    assert re.split(r"\s{2,}", second) == ["each", "-", "≤ 0.5 x", "1 x (-1.484 to 3.484, n = 3)", "measured", "NO"]
    assert "published: somebody" in quick
    assert "a note" in quick


def test_a_stopped_benchmark_resumes(counting: Counting, tmp_path: Path) -> None:
    counting.broken = True
    with pytest.raises(KeyboardInterrupt):
        _run(counting, tmp_path)
    counting.broken = False
    report = _run(counting, tmp_path, resume=True)
    assert counting.measured == ["p0", "p1", "p2"]
    assert report.figures[0].measured == 3


def test_results_are_reused_only_on_request_and_for_equal_parameters(counting: Counting, tmp_path: Path) -> None:
    _run(counting, tmp_path)
    _run(counting, tmp_path)
    assert len(counting.measured) == 6
    _run(counting, tmp_path, resume=True)
    assert len(counting.measured) == 6
    _run(counting, tmp_path, resume=True, quick=False)
    _run(counting, tmp_path, resume=True, seed=1)
    assert len(counting.measured) == 12


def test_a_full_run_never_reuses_quick_pieces_nor_those_of_other_code(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = [BenchmarkPiece("p", {}, lambda: counting.measure(0, 1))]  # equal parameters in both modes
    counting.BENCHMARK = replace(counting.BENCHMARK, pieces=lambda context: same)
    _run(counting, tmp_path, quick=True)
    _run(counting, tmp_path, quick=False, resume=True)
    assert counting.measured == ["p0", "p0"]
    monkeypatch.setattr("benchmarks.benchmark_runner.code_digest", lambda paths: "changed")
    _run(counting, tmp_path, quick=False, resume=True)
    assert counting.measured == ["p0", "p0", "p0"]


def test_figures_are_computed_again_from_the_recorded_pieces(command: typer.Typer, tmp_path: Path) -> None:
    assert CliRunner().invoke(command, ["counting", "--full", "--out", str(tmp_path)]).exit_code == 0
    path = tmp_path / "counting.json"
    recorded = json.loads(path.read_text())
    recorded["pieces"]["p2"]["value"] = 100
    path.write_text(json.dumps(recorded))
    assert CliRunner().invoke(command, ["counting", "--redraw", "--out", str(tmp_path)]).exit_code == 0
    redrawn = json.loads(path.read_text())
    assert redrawn["figures"][0]["measured"] == 110
    assert {key: redrawn[key] for key in ("date", "commit", "code", "load", "mode")} == {
        key: recorded[key] for key in ("date", "commit", "code", "load", "mode")
    }
    missing = CliRunner().invoke(command, ["counting", "--redraw", "--out", str(tmp_path / "nothing")]).exception
    assert "run `potluck bench counting` first" in str(missing)


def test_a_damaged_piece_is_measured_again(counting: Counting, tmp_path: Path) -> None:
    _run(counting, tmp_path)
    path = tmp_path / "unfinished" / "counting-quick.jsonl"
    first, _, third = path.read_text().splitlines()
    path.write_text("\n".join(["[]", first, '{"piece": "p1"}', third[: len(third) // 2]]))
    assert _run(counting, tmp_path, resume=True).figures[0].measured == 3
    assert counting.measured == ["p0", "p1", "p2", "p1", "p2"]


def test_a_result_file_replaces_the_unfinished_pieces_and_can_be_resumed(counting: Counting, tmp_path: Path) -> None:
    for quick in (True, False):
        _run(counting, tmp_path, quick=quick)
    _run(counting, tmp_path, quick=False, resume=True).write_files(tmp_path)
    assert [path.name for path in (tmp_path / "unfinished").iterdir()] == ["counting-quick.jsonl"]
    report = _run(counting, tmp_path, quick=False, resume=True)
    assert len(counting.measured) == 6
    assert report.figures[0].measured == 30


def test_the_time_left_follows_expected_seconds_and_observed_speed() -> None:
    pieces = [BenchmarkPiece(str(n), {}, dict, weight) for n, weight in enumerate((1.0, 2.0, 4.0))]
    forecast = RemainingTime(pieces)
    assert forecast.seconds_left == 7.0
    forecast.count_measured(pieces[0], 3.0)
    assert forecast.seconds_left == 18.0
    forecast.count_reused(pieces[1])
    assert forecast.seconds_left == 12.0


def test_progress_shows_the_time_left(counting: Counting, tmp_path: Path) -> None:
    stream = StringIO()
    run_benchmark(counting.BENCHMARK, BenchmarkContext(True), tmp_path, PlainProgress(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/3] counting: p0, about 3 s left"
    assert lines[-1].startswith("done in")


@pytest.mark.parametrize(
    "chart",
    [
        Chart(
            "lines <&>", [ChartSeries("a", [0.0, -3.0], [0.1, 10]), ChartSeries("b", [2.0], [1.0])], "y", x_scale="log"
        ),
        Chart(
            "bars",
            [ChartSeries("a", [1.0, 0.0]), ChartSeries("b", [0.5, 7.0])],
            "y",
            groups=["g", "h"],
            marks=[("goal", 9.0)],
        ),
        Chart("flat", [ChartSeries("a", [0.0], [1.0])], "y"),
        Chart("wide", [ChartSeries("a", [1.0, 2.0], intervals=[(-90.0, 90.0), (1.5, 2.5)])], "y", groups=["g", "h"]),
        Chart("far", [ChartSeries("a", [100.0, 101.0], [3.0, 4.0], [(99.0, 101.0)] * 2)], "y", x_scale="log"),
    ],
)
def test_a_chart_is_complete_and_stays_inside_its_frame(chart: Chart) -> None:
    root = ElementTree.fromstring(draw_charts([chart, chart, chart]))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count(chart.title) == 3
    for series in chart.series:
        assert texts.count(series.name) == 3
    for element in root.iter():
        for key, most in (("cx", 560), ("cy", 380), ("x1", 560), ("y1", 380), ("y2", 380)):
            assert 0 <= float(element.get(key, 0)) <= most
        assert float(element.get("height", 0)) >= 0


def test_intervals_are_drawn_as_whiskers_and_axes_have_round_ticks() -> None:
    series = ChartSeries("a", [1.0, 2.0], [30.0, 900.0], [(0.8, 1.2), (1.5, 2.5)])
    drawn = draw_charts([Chart("t", [series], "y", x_scale="log")])
    without = draw_charts([Chart("t", [replace(series, intervals=())], "y", x_scale="log")])
    assert drawn.count("<line") - without.count("<line") >= 6
    texts = [element.text for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in ("50", "100", "200", "500")] == ["50", "100", "200", "500"]


def test_without_a_name_the_benchmarks_are_listed(command: typer.Typer) -> None:
    assert "counting  counts" in CliRunner().invoke(command, []).stdout
    assert json.loads(CliRunner().invoke(command, ["--json"]).stdout) == [{"name": "counting", "summary": "counts"}]


def test_the_command_writes_and_prints(command: typer.Typer, tmp_path: Path) -> None:
    output = CliRunner().invoke(command, ["counting", "--out", str(tmp_path)])
    assert output.exit_code == 0
    assert "≥ 3 s" in output.stdout
    assert (tmp_path / "counting.svg").exists()
    document = json.loads(CliRunner().invoke(command, ["counting", "--json", "--full", "--out", str(tmp_path)]).stdout)
    assert document["mode"] == "full"
    both = json.loads(CliRunner().invoke(command, ["all", "--json", "--out", str(tmp_path)]).stdout)
    assert [one["name"] for one in both] == ["counting"]


def test_a_missed_goal_only_counts_when_strict(command: typer.Typer, tmp_path: Path) -> None:
    assert CliRunner().invoke(command, ["counting", "--strict", "--out", str(tmp_path)]).exit_code == 1


@pytest.mark.parametrize(
    "wrong", [["nothing"], ["counting", "--data", "/no/such/folder"], ["counting", "--out", __file__]]
)
def test_bad_input_is_named_in_one_line(command: typer.Typer, wrong: list[str]) -> None:
    error = CliRunner().invoke(command, wrong).exception
    assert isinstance(error, UserError)
    assert "\n" not in str(error)


def test_every_benchmark_of_the_catalogue_loads_under_its_name() -> None:
    for name, entry in bench.CATALOGUE.items():
        benchmark = bench.find_benchmark(name)
        assert (benchmark.name, benchmark.summary) == (name, entry.summary)
        for quick in (True, False):
            names = [piece.name for piece in benchmark.pieces(BenchmarkContext(quick))]
            assert len(names) == len(set(names)) > 1


def test_without_a_checkout_the_command_explains_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("potluck.cli.bench_command.__file__", str(tmp_path / "lib" / "potluck" / "cli" / "x.py"))
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "overlap"])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: benchmarks are not part of the installed package; clone the repository and run `potluck bench` there"
    ]
