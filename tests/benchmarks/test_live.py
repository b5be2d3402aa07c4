from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.benchmark import BenchmarkContext
from benchmarks.benchmark_figures import Figure
from benchmarks.live import BENCHMARK as LIVE
from benchmarks.live import live_trial
from benchmarks.transport import BENCHMARK as TRANSPORT
from benchmarks.transport.pull_speed import measure_pulls
from potluck.job import make

RESULTS = {
    "empty/0": {"measured_s": 0.020},
    "lab/0": {"measured_s": 1.05, "predicted_s": 1.0},
    "sync-sgd/0": {"measured_s": 3.0, "predicted_s": 2.5},
    "dynacomm/0": {"measured_s": 1.8, "predicted_s": 1.8},
    "duplex/0": {"measured_s": 1.5, "predicted_s": 1.5},
}


def _named(figures: object, name: str) -> list[Figure]:
    assert isinstance(figures, list)
    return [figure for figure in figures if name in figure.name]


def test_the_live_figures_are_judged_against_their_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.live._PEER_RESULTS", tmp_path / "missing.json")
    figures = LIVE.figures(RESULTS)
    assert [round(figure.measured, 6) for figure in _named(figures, "error of")] == [5.0, 20.0, 0.0, 0.0]
    assert [figure.meets_goal for figure in _named(figures, "error of")] == [True, False, True, True]
    assert _named(figures, "reduction of dynacomm")[0].measured == pytest.approx(40.0)
    assert "benchmarks.peers live" in _named(figures, "round of 10")[0].note
    assert LIVE.charts(RESULTS)


def test_the_flower_results_come_from_the_peer_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.live._PEER_RESULTS", tmp_path / "peers-live.json")
    rows = [{"name": "round: advantage over Flower", "measured": 90.0}, {"name": "round: Flower", "measured": 2.7}]
    (tmp_path / "peers-live.json").write_text(json.dumps({"figures": rows, "mode": "quick"}))
    figures = LIVE.figures(RESULTS)
    assert "a quick run" in _named(figures, "Flower's round over")[0].note
    published = _named(figures, "round of 10")[0].published
    assert published is not None
    assert published.value == pytest.approx(2700.0)
    assert (
        _named(figures, "Flower's round over")[0].measured,
        _named(figures, "Flower's round over")[0].meets_goal,
    ) == (
        90.0,
        True,
    )


def test_communication_and_computation_of_the_overlapped_job_are_about_equal() -> None:
    predicted = {
        recipe: live_trial.predict_rounds(live_trial.overlapped_job(recipe, 2))[0]
        for recipe in ("sync-sgd", "dynacomm")
    }
    assert 0.35 < 1 - predicted["dynacomm"] / predicted["sync-sgd"] < 0.5


def test_every_piece_is_a_job() -> None:
    for quick in (True, False):
        assert len(LIVE.pieces(BenchmarkContext(quick=quick))) % 5 == 0
    model = make(live_trial.empty_job(10, 1))
    assert len(model.fleet.members) == 10


def test_a_pull_is_measured_against_two_plain_transports() -> None:
    result = measure_pulls(2_000_000, 2)
    assert [len(seconds) for seconds in result[:3]] == [2, 2, 2]
    assert min(min(result.node), min(result.single), min(result.chunked)) > 0
    results = {"pull/0": {"node": 80.0, "single": 50.0, "chunked": 100.0, "beyond_bytes": 3 << 20}}
    figures = TRANSPORT.figures(results)
    assert [figure.meets_goal for figure in figures if figure.goal] == [True, False]
    assert figures[0].measured == pytest.approx(80.0)
