from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from benchmarks import benchmark_runner, result_check
from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Figure
from benchmarks.benchmark_progress import PlainProgress
from benchmarks.benchmark_runner import run_benchmark
from benchmarks.result_check import check_result, check_unfinished, choose_sample
from benchmarks.result_files import outdated_reason, read_results
from potluck.errors import UserError

CONTEXT = BenchmarkContext(quick=False)
FACTOR = {"factor": 1}  # stands for the code that is measured


def _multiply(n: int) -> dict[str, Any]:
    return {"value": n * FACTOR["factor"], "shape": (n, n)}


def _pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
    exact = [BenchmarkPiece(f"exact/{n}", {"n": n}, lambda n=n: _multiply(n), n + 1, parallel=True) for n in range(4)]
    return [*exact, BenchmarkPiece("timed", {}, lambda: {"value": 100 * FACTOR["factor"]})]


def _figures(results: Results) -> list[Figure]:
    return [Figure(name="sum", unit="", measured=sum(each["value"] for each in results.values()), executed="simulated")]


BENCHMARK = Benchmark("products", "multiplies", _pieces, _figures)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A full result of a clean commit; pieces are measured in this process."""
    monkeypatch.setitem(FACTOR, "factor", 1)

    def revision(commit: str) -> Any:
        return lambda: {"commit": commit, "clean": True}

    def measure_here(pieces: Any, show: Any, processes: int | None = None) -> Any:
        return ((piece, *benchmark_runner._measure_timed(piece)) for piece in pieces)

    for module in (benchmark_runner, result_check):
        monkeypatch.setattr(module, "measure_pieces", measure_here)
        monkeypatch.setattr(module, "code_digest", lambda paths: "now")
    for name in ("benchmarks.benchmark_runner", "benchmarks.benchmark_report"):
        monkeypatch.setattr(f"{name}.describe_revision", revision("a" * 40))
    report = run_benchmark(BENCHMARK, CONTEXT, tmp_path, PlainProgress(StringIO()))
    monkeypatch.setattr(result_check, "describe_revision", revision("b" * 40))
    report.write_files(tmp_path)
    document: dict[str, Any] = json.loads((tmp_path / "products.json").read_text())
    return {**document, "code": {**document["code"], "digest": "before"}}


def _check(document: dict[str, Any], benchmark: Benchmark = BENCHMARK, minutes: float = 0.05) -> dict[str, Any]:
    return check_result(benchmark, CONTEXT, document, minutes, lambda line: None).document


def test_equal_values_make_a_result_current_for_the_changed_code(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.result_files.code_digest", lambda paths: "now")
    path = tmp_path / "products.json"
    path.write_text(json.dumps(recorded))
    assert "has changed since" in outdated_reason(read_results(tmp_path)["products"])
    path.write_text(json.dumps(_check(recorded)))
    result = read_results(tmp_path)["products"]
    assert outdated_reason(result) == ""
    assert result.commit == "a" * 40
    assert result.checked is not None
    assert (result.checked.commit, result.checked.of, result.checked.measured_again) == ("b" * 40, 4, 1)
    assert 1 <= result.checked.pieces < 4


def test_another_value_is_refused_by_name(recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTOR, "factor", 2)
    with pytest.raises(UserError, match=r"exact/[0-3] gives other values than at commit aaaaaaaaa"):
        _check(recorded, minutes=1)


def test_times_of_this_machine_are_measured_again_and_replaced(
    recorded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the piece with n = 0, which no factor changes, is compared."""
    monkeypatch.setitem(FACTOR, "factor", 2)
    checked = _check(recorded, minutes=0)
    assert checked["pieces"]["timed"]["value"] == 200
    assert checked["measurements"]["timed"]["commit"] == "b" * 40
    assert checked["figures"][0]["measured"] == 206


def test_a_changed_workload_and_an_unclean_result_are_refused(recorded: dict[str, Any]) -> None:
    other = replace(BENCHMARK, pieces=lambda context: _pieces(context)[1:])
    with pytest.raises(UserError, match="other pieces or parameters"):
        _check(recorded, other)
    with pytest.raises(UserError, match="not measured at a commit"):
        _check({**recorded, "clean": False})


def test_a_sample_has_every_kind_and_fits_the_time() -> None:
    pieces = [BenchmarkPiece(f"{kind}/{n}", {}, dict, 10.0 + n) for kind in "abc" for n in range(5)]
    sample = choose_sample(pieces, 60, "code")
    assert {piece.name[0] for piece in sample} == {"a", "b", "c"}
    assert sum(piece.expected_s for piece in sample) <= 60
    assert [piece.name for piece in choose_sample(pieces, 0, "code")] == ["a/0", "b/0", "c/0"]
    assert choose_sample(pieces, 60, "code") != choose_sample(pieces, 60, "other code")


def test_pieces_of_an_unfinished_benchmark_stand_if_a_sample_gives_the_recorded_values(
    recorded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = tmp_path / "unfinished" / "products-full.jsonl"

    def run(resume: bool) -> int:
        """How many pieces are measured with the code of now."""
        measured: list[str] = []
        measure = benchmark_runner.measure_pieces

        def count(pieces: Any, show: Any, processes: int | None = None) -> Any:
            for each in measure(pieces, show, processes):
                measured.append(each[0].name)
                yield each

        with monkeypatch.context() as patch:
            patch.setattr(benchmark_runner, "measure_pieces", count)
            run_benchmark(BENCHMARK, CONTEXT, tmp_path, PlainProgress(StringIO()), resume)
        return len(measured)

    (tmp_path / "products.json").unlink()
    assert run(resume=False) == 5
    for module in (benchmark_runner, result_check):
        monkeypatch.setattr(module, "code_digest", lambda paths: "later")
    assert check_unfinished(BENCHMARK, CONTEXT, tmp_path, 0.05, lambda line: None) == 4
    assert run(resume=True) == 1  # the piece with times
    for module in (benchmark_runner, result_check):
        monkeypatch.setattr(module, "code_digest", lambda paths: "latest")
    monkeypatch.setitem(FACTOR, "factor", 2)
    before = unfinished.read_text()
    with pytest.raises(UserError, match="gives other values than at commit aaaaaaaaa"):
        check_unfinished(BENCHMARK, CONTEXT, tmp_path, 0.05, lambda line: None)
    assert unfinished.read_text() == before
