from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.benchmark import BenchmarkContext, Results
from benchmarks.streaming import BENCHMARK, rate_race, rate_tuning, scadles_testbed, skewed_classes
from benchmarks.streaming.compression import (
    CODECS,
    DIGITS,
    CodecCase,
    compressed_job,
    compute_figures,
    measure_codec,
    time_compression,
)
from potluck.task import TaskSettings

TINY = DIGITS._replace(rounds=2, devices=2)
SMALL = "synthetic:shape=3x32x32,train=400,test=40"


def test_both_sides_of_the_speed_are_timed() -> None:
    ours, reference = time_compression(100_000, 0.01, seed=1)
    assert ours > 0
    assert reference > 0


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_is_set_in_its_job(codec: str) -> None:
    job = compressed_job(TINY, CODECS[codec], seed=0)
    assert job.rounds.codec.__struct_config__.tag == CODECS[codec].codec["kind"]
    assert job.rounds.pull_codec.__struct_config__.tag == CODECS[codec].pull_codec["kind"]
    assert job.rounds.server.has_momentum is not CODECS[codec].device_momentum


def test_a_run_reports_the_bytes_both_ways() -> None:
    top_k = {"kind": "top-k", "ratio": 0.01, "values": "f16"}
    dense = measure_codec(TINY, CodecCase({"kind": "dense"}), 0, None)
    sparse = measure_codec(TINY, CodecCase(top_k, top_k), 0, None)
    never = measure_codec(TINY, CodecCase({"kind": "adaptive", "ratio": 0.1, "delta": 0.0}), 0, None)
    assert dense["pulled_bytes"] == dense["dense_pulled_bytes"] == dense["dense_bytes"]
    assert 0.5 < sparse["pulled_bytes"] / sparse["dense_pulled_bytes"] < 0.52, "the first of two pulls is dense"
    assert dense["pushed_bytes"] == dense["dense_bytes"] == sparse["dense_bytes"] == never["pushed_bytes"]
    assert 120 < sparse["dense_bytes"] / sparse["pushed_bytes"] < 140
    assert (dense["cnc"], sparse["cnc"], never["cnc"]) == (0, 1, 0)
    assert never["accuracy"] == dense["accuracy"]
    assert sparse["time_s"] < dense["time_s"]


def _compressed(best: dict[str, float]) -> Results:
    dense = {
        "accuracy": 0.7, "time_s": 9.0, "pushed_bytes": 1000.0, "dense_bytes": 1000.0, "pulled_bytes": 1000.0,
        "dense_pulled_bytes": 1000.0, "cnc": 0.0,
    }  # fmt: skip
    runs = {f"{name}/{repeat}": dense for name in CODECS for repeat in range(2)}
    graded = {f"CR 0.035, signs both ways/{repeat}": {**dense, **best} for repeat in range(2)}
    return {**runs, **graded, "speed": {"ours_s": [1.0, 2.0], "reference_s": [1.0, 1.0]}}


@pytest.mark.parametrize(
    ("best", "goals_met"),
    [
        ({"pushed_bytes": 8.0, "pulled_bytes": 10.0, "accuracy": 0.699}, [True, True, True]),
        ({"pushed_bytes": 8.0, "pulled_bytes": 20.0, "accuracy": 0.695}, [True, False, False]),
    ],
)
def test_goals_are_judged_against_the_dense_run(best: dict[str, float], goals_met: list[bool]) -> None:
    figures = compute_figures(_compressed(best))
    assert [figure.meets_goal for figure in figures if figure.goal is not None] == goals_met


def test_pieces_have_their_own_names() -> None:
    for quick in (True, False):
        names = [piece.name for piece in BENCHMARK.pieces(BenchmarkContext(quick=quick))]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("recipe", rate_race.RECIPES)
def test_every_recipe_trains_for_the_same_number_of_epochs(recipe: str) -> None:
    workload = rate_race.RaceWorkload(epochs=2, target=0.5, samples=5000, data=SMALL)
    job = rate_race.race_job(workload, recipe, "S1", seed=0)
    assert rate_race.samples_per_round(job) == pytest.approx(10_000, rel=0.05)


def test_a_race_records_accuracy_over_time() -> None:
    workload = rate_race.RaceWorkload(epochs=1, target=0.5, scores=2, samples=3000, data=SMALL)
    result = rate_race.measure_race(workload, "ddl", "S1'", seed=0)
    assert result["top-5"] >= result["accuracy"]
    moments = [at for at, _ in result["curve"]]
    assert moments == sorted(moments)
    assert len(moments) >= 3
    assert 3 * 64 / 22 < result["time_s"] < 3 * 64 / 22 + 2, "it waits for the slowest stream"


def test_the_time_to_target_is_interpolated_between_scores() -> None:
    curve = [(0.0, 0.1), (10.0, 0.3), (20.0, 0.7)]
    assert rate_race.seconds_to_target(0.3, curve) == 10.0
    assert rate_race.seconds_to_target(0.5, curve) == pytest.approx(15.0)
    assert rate_race.seconds_to_target(0.8, curve) == float("inf")


def test_persistence_buffers_grow() -> None:
    persistent, truncated = (rate_race.measure_buffers("S2", policy, 6, 0) for policy in ("persistence", "truncation"))
    assert persistent["time_s"] == truncated["time_s"]
    assert persistent["peak"] > 5 * truncated["peak"]


@pytest.mark.parametrize("name", skewed_classes.CASES)
def test_every_skew_case_is_set_in_its_job(name: str) -> None:
    case = skewed_classes.CASES[name]
    job = skewed_classes.skewed_job(case, skewed_classes.QUICK[0], 0)
    assert job.stream is not None
    assert (job.stream.injection is not None) == (case.injection is not None)


@pytest.mark.parametrize(("workload", "classes"), list(zip(skewed_classes.FULL, (10, 100), strict=True)))
def test_the_network_has_an_output_for_every_class(workload: skewed_classes.SkewWorkload, classes: int) -> None:
    job = skewed_classes.skewed_job(skewed_classes.CASES["ddl"], workload, 0)
    assert isinstance(job.task, TaskSettings)
    module = job.task.model_factory((3, 32, 32), classes)()
    assert module(torch.zeros(2, 3, 32, 32)).shape == (2, classes)


def test_shared_samples_are_counted() -> None:
    workload = skewed_classes.QUICK[0]._replace(rounds=2, data=SMALL)
    case = skewed_classes.SkewCase("scadles", injection=("missing-classes", 0.5, 0.5))
    result = skewed_classes.measure_skew(case, workload, 0, None)
    assert result["shared"] > 0
    assert result["top-5"] >= result["accuracy"]


def _raced(speed: float, lost: float) -> Results:
    plain: dict[str, Any] = {
        "accuracy": 0.7, "top-5": 0.9, "time_s": 90.0, "rounds": 10, "samples": 100, "target": 0.6,
        "curve": [(0, 0.1), (90, 0.7)], "target_rounds": 8,
        "buffers": {"persistence": {"peak": 9000}, "truncation": {"peak": 10}},
    }  # fmt: skip
    ours = {**plain, "accuracy": 0.7 - lost / 100, "curve": [(0, 0.1), (90 / speed, 0.7)]}
    return {
        f"{recipe}/{one}/0": ours if recipe == "scadles-plus" else plain
        for recipe in rate_race.RECIPES
        for one in scadles_testbed.SETS
    }


@pytest.mark.parametrize(("speed", "lost", "met"), [(3.5, 0.05, True), (0.9, 0.5, False)])
def test_speed_and_accuracy_are_judged_against_the_baseline(speed: float, lost: float, met: bool) -> None:
    figures = rate_race.compute_figures(_raced(speed, lost))
    assert figures[0].measured == pytest.approx(speed)
    goals = [figure.meets_goal for figure in figures if figure.goal is not None]
    assert goals == [met] * 9 + [True] * 4
    assert len(rate_race.build_charts(_raced(speed, lost))) == 3


def test_every_skew_correction_has_its_figure() -> None:
    run = {"accuracy": 0.5, "top-5": 0.75, "shared": 10, "time_s": 1.0}
    results = {f"skew/one class each/{name}/{repeat}": run for name in skewed_classes.CASES for repeat in range(2)}
    figures = list(skewed_classes.compute_figures(results))
    assert [figure.measured for figure in figures] == [75.0, 50.0] * len(skewed_classes.CASES)
    judged = [figure for figure in figures if figure.goal is not None]
    assert [(figure.goal_text, figure.meets_goal) for figure in judged] == [("≥ 93.6 %", False)]


def test_the_best_rate_of_every_recipe_is_shown() -> None:
    accuracies = {0.02: 0.3, 0.1: 0.5}
    results: dict[str, Any] = {
        f"tuning/{recipe}/{lr:g}/{rates}": {"accuracy": accuracy}
        for recipe in rate_race.RECIPES
        for lr, accuracy in accuracies.items()
        for rates in ("S1", "S2")
    }
    figures = list(rate_tuning.compute_figures({**results, "bare loop": {"accuracy": 0.6, "lr": 0.46, "batch": 4721}}))
    assert [figure.measured for figure in figures] == [0.1, 0.1, 0.1, 60.0]
    assert figures[0].note.startswith("0.02: 30.0 %, 0.1: 50.0 %; used: ")


def test_the_bare_loop_learns() -> None:
    data = "synthetic:shape=3x32x32,train=600,test=100,noise=0.5"
    assert rate_tuning.measure_bare_loop(data, 4, 100, 0.5, None)["accuracy"] > 0.3


def test_a_rate_is_tried_in_a_short_run() -> None:
    workload = rate_race.RaceWorkload(epochs=0.5, target=1.0, scores=1, samples=2000, data=SMALL)
    assert 0 <= rate_tuning.measure_rate(workload, "scadles", 0.05, "S1", None)["accuracy"] <= 1
