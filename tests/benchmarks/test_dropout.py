from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import potluck
from benchmarks.benchmark import BenchmarkContext, Results
from benchmarks.dropout import BENCHMARK, dropout_measurements
from benchmarks.dropout import declare_pieces as declared
from benchmarks.dropout.dropout_figures import DropoutRun, compute_figures, setting_standings
from benchmarks.dropout.dropout_tuning import RATES, SEEDS, best_settings
from benchmarks.dropout.dropout_workload import (
    BOUND,
    EXPLORED,
    METHODS,
    OURS,
    SETTINGS,
    STEPS,
    TABLE,
    VARIATIONS,
    TrainingPlan,
    TunedSettings,
    dropout_job,
    rate_table_path,
)
from potluck.explore import Exploration
from potluck.fleet.traces import RandomWalkTrace
from potluck.model.submodels import trace_slimmable
from potluck.planning.pareto_table import ParetoTable
from potluck.report.svg_chart import draw_charts
from potluck.settings import decode_settings, encode_settings
from potluck.task import TaskSettings

TUNED = TunedSettings(0.1)


def test_the_networks_cost_what_the_fleet_is_made_for() -> None:
    for setting in SETTINGS.values():
        task = decode_settings({"model": setting.model, "data": setting.data}, TaskSettings)
        info = task.data.info(None)
        results = trace_slimmable(task.model_factory(info.shape, len(info.classes))(), info.shape)
        assert results.full_macs == setting.macs, setting.title


def test_explored_tables_fit_their_networks() -> None:
    for setting in SETTINGS.values():
        for method in EXPLORED if setting.table else ():
            table = ParetoTable.load(Path(rate_table_path(setting, method)))
            assert table.baseline_macs == setting.macs
            assert table.entries[0].macs < 0.15 * setting.macs, "the weakest moment of the weakest device needs less"


@pytest.mark.parametrize("variation", VARIATIONS)
def test_every_method_runs_on_the_same_fleet(variation: str) -> None:
    fleets = {
        method: dropout_job(TrainingPlan("digits", variation, method, 3, 0), TUNED).fleet
        for method in METHODS
        if method != BOUND
    }
    assert len({str(fleet) for fleet in fleets.values()}) == 1
    members = fleets[OURS].members
    assert len(members) == 100
    speed = members[0].speed
    assert isinstance(speed, RandomWalkTrace)
    assert speed.step == pytest.approx(speed.high - speed.low), (
        "each level is uniform and independent of the one before"
    )
    assert sorted({device.flops / members[0].flops for device in members}) == pytest.approx([0.33, 0.66, 1.0])


def test_per_mini_batch_choice_leaves_no_stragglers() -> None:
    """Ten mini-batches take ten slots, and longer with methods that decide before the round."""
    methods = (OURS, "federated-dropout", "fjord", "fedavg", BOUND)
    jobs = {method: dropout_job(TrainingPlan("digits", "between", method, 20, 0), TUNED) for method in methods}
    rounds = {
        method: potluck.simulate(msgspec.structs.replace(job, timing_only=True)).summary["rounds"]
        for method, job in jobs.items()
    }
    assert rounds[OURS] >= 19
    assert rounds["full"] == 20
    assert all(rounds[method] < rounds[OURS] for method in ("federated-dropout", "fjord", "fedavg"))


def test_a_training_result_has_a_curve() -> None:
    result = dropout_measurements.measure_training(TrainingPlan("digits", "within", OURS, 5, 0), TUNED, None)
    assert result["times_s"] == sorted(result["times_s"])
    assert len(result["times_s"]) == len(result["accuracies"]) >= 1
    assert result["rounds"] >= 5
    assert 0.2 < result["share"] < 0.7


def test_an_exploration_result_is_compared_with_the_baselines() -> None:
    settings = Exploration(
        batches=3,
        batch=16,
        warmup=3,
        held_out=60,
        repeats=1,
        population=4,
        generations=1,
        uniform=3,
        processes=0,
        units="leading",
        static=True,
    )
    result = dropout_measurements.measure_exploration(SETTINGS["digits"], settings, None)
    assert result["behind"] <= 0.0
    assert result["hypervolume"] >= result["uniform_hypervolume"]
    assert len(result["uniform"]) >= 1


def test_pieces_are_unique_and_constant_resources_are_trained_once() -> None:
    full = [piece.name for piece in declared(BenchmarkContext(quick=False))]
    assert len(full) == len(set(full))
    trained = [name for name in full if name.count("/") == 3]
    for method, times in ((OURS, 22), (TABLE, 22), ("small", 22), ("heterofl", 22), (BOUND, 11)):
        assert sum(f"/{method}/" in name for name in trained) == times, "three seeds, five where classes are skewed"
    for quick in declared(BenchmarkContext(quick=True)):
        assert quick.name in full


def test_a_changed_table_is_another_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def of(method: str) -> Any:
        parameters = {piece.name: piece.parameters for piece in declared(BenchmarkContext(quick=True))}
        return parameters[f"cifar10-iid/between/{method}/0"]

    before = of(TABLE), of("small")
    other = tmp_path / "other.json"
    table = ParetoTable.load(Path(rate_table_path(SETTINGS["cifar10-iid"], TABLE)))
    msgspec.structs.replace(table, entries=table.entries[:-1]).save(other)
    monkeypatch.setattr(
        "benchmarks.dropout.dropout_workload.rate_table_path",
        lambda setting, method: str(other) if method == TABLE else "",
    )
    assert of(TABLE) != before[0]
    assert of("small") == before[1]


# --- figures computed from the results --------------------------------------------------------------------------------


def _result(slope: float) -> dict[str, Any]:
    times = [float(10 * index) for index in range(1, 11)]
    return {
        "times_s": times,
        "accuracies": [slope * at / 100 for at in times],
        "rounds": 10.0,
        "share": 0.4,
        "end_s": 100.0,
    }


def _results() -> Results:
    row = {"macs": 0.3, "time": 0.33, "whole_s": 0.1, "small_s": 0.033}
    results: dict[str, Any] = {
        f"step/{name}": {str(rate): row for rate in dropout_measurements.RATES}
        for name in dropout_measurements.NETWORKS
    }
    results["exploration"] = {
        "minutes": 9.0, "hypervolume": 0.3, "uniform_hypervolume": 0.2, "evaluations": 7, "behind": 0.0,
        "correlation": None, "front": [(0.2, 0.1), (1.0, 0.4)], "uniform": [(0.3, 0.1), (1.0, 0.3)],
    }  # fmt: skip
    for seed in range(2):
        results[f"cifar10-iid/between/{OURS}/{seed}"] = _result(0.6)
    results["cifar10-iid/between/heterofl/0"] = _result(0.3)
    results["cifar10-iid/between/small/0"] = _result(0.5)
    results[f"cifar10-iid/steady/{BOUND}/0"] = _result(0.65)
    return results


def test_figures_name_the_best_method_and_its_margin() -> None:
    (standing,) = setting_standings(_results())
    assert standing.best_rival() == "small"
    assert standing.speed_ups("heterofl") == pytest.approx([2.0, 2.0], rel=0.2)
    assert [*standing.runs] == [OURS, "small", "heterofl", BOUND]
    by_name = {figure.name.strip(): figure for figure in compute_figures(_results())}
    assert by_name["ahead of the best baseline"].measured == pytest.approx(9.0)
    assert by_name["behind FedAvg with full resources"].meets_goal is False
    assert by_name["VGG-11, rate 0.5: step time relative to MACs"].measured == pytest.approx(1.1)
    assert draw_charts(BENCHMARK.charts(_results())).count("<polyline") == 6


def test_a_target_that_is_never_reached_gives_no_speedup() -> None:
    run = DropoutRun([1.0, 2.0], [0.1, 0.2], 2.0)
    assert run.time_to_accuracy(0.2) == 2.0
    assert run.time_to_accuracy(0.3) == math.inf
    results = {**_results(), "cifar10-iid/between/small/0": _result(0.9)}
    assert setting_standings(results)[0].speed_ups("small") == [0.0, 0.0]


def test_few_scores_do_not_lower_the_final_accuracy() -> None:
    """The mean of the last three scores once included the untrained model for methods with few rounds."""
    often = DropoutRun([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.1, 0.3, 0.4, 0.45, 0.5, 0.5], 100.0)
    seldom = DropoutRun([0.0, 50.0, 95.0], [0.1, 0.4, 0.5], 100.0)
    assert often.final_accuracy == seldom.final_accuracy == 0.5
    assert DropoutRun([0.0, 30.0], [0.1, 0.4], 100.0).final_accuracy == 0.4


def test_the_duration_of_a_run_is_that_of_its_rounds() -> None:
    job = dropout_job(TrainingPlan("digits", "within", OURS, 7, 0), TUNED)
    assert float(job.stop.time or 0) == 7 * STEPS


# --- tuning -----------------------------------------------------------------------------------------------------------


def test_every_method_is_tuned_over_the_same_rates_and_corrections() -> None:
    pieces = {piece.name: piece for piece in declared(BenchmarkContext(quick=False))}
    for setting, corrections, seeds in (("cifar10-iid", 1, 1), ("cifar10-skewed", 3, 2)):
        for method, chosen in METHODS.items():
            tried = [name for name in pieces if name.startswith(f"tuning/{setting}/{method}/")]
            assert len(tried) == len(RATES) * len(chosen.options) * corrections * seeds
            assert pieces[f"{setting}/{'steady' if method == BOUND else 'within'}/{method}/0"].needs == tuple(tried)
    compared = {name.rpartition("/")[2] for name in pieces if name.count("/") == 3}
    assert not compared & {str(seed) for seed in SEEDS}


def test_the_best_mean_over_seeds_is_chosen() -> None:
    tried = {
        f"{lr}/{seed}": {"tuned": [lr, "share 0.3", "plain"], "accuracy": accuracy}
        for lr, accuracies in ((0.05, (0.5, 0.1)), (0.1, (0.35, 0.35)))
        for seed, accuracy in enumerate(accuracies)
    }
    tuned = best_settings(tried)
    assert tuned == TunedSettings(0.1, "share 0.3", "plain")
    job = dropout_job(TrainingPlan("digits", "within", "small", 1, 0), tuned)
    assert encode_settings(job.rounds)["submodel"]["share"] == 0.3


def test_tuning_uses_other_test_samples_than_the_comparison() -> None:
    compared, tuning = (dropout_measurements._setting_task("digits", None, other).data.test for other in (False, True))
    assert not {sample.numpy().tobytes() for sample in compared.x} & {sample.numpy().tobytes() for sample in tuning.x}
