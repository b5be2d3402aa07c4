"""The pipeline benchmark on few batches."""

from __future__ import annotations

import pytest

from benchmarks.benchmark import BenchmarkContext
from benchmarks.pipeline import BENCHMARK
from benchmarks.pipeline.pipeline_experiments import (
    RECOVERIES,
    least_period_s,
    measure_adaptation,
    measure_recovery,
    measure_replication,
    measure_slow_link,
    measure_speed,
)
from benchmarks.pipeline.pipeline_learning import DIGITS, VARIANTS, measure_fill, measure_learning
from benchmarks.pipeline.pipeline_trial import BATCH, chain_costs, reference_seconds, run_pipeline_trial


def test_the_profile_is_that_of_the_network() -> None:
    chain, seconds = chain_costs(), reference_seconds()
    assert chain.layer_count == len(chain.cut_bytes_per_sample) == len(seconds.forward) == len(seconds.backward) == 53
    assert sum(chain.param_bytes) == pytest.approx(9e6, rel=0.05)
    assert 2 < BATCH * sum(seconds.both) < 10, "seconds per batch on the reference device"


def test_a_planner_that_knows_macs_only_finds_the_published_speed_up() -> None:
    """It does not know that layers do not take what their MACs say, nor that a device is ten times slower."""
    found = run_pipeline_trial("ftpipehd", (1, 1, 10), 60, pipeline={"layer_costs": "macs"})
    baseline = run_pipeline_trial("pipedream", (1, 1, 10), 15)
    period = found.mean_period_s(40, 55)
    assert baseline.mean_period_s(6, 12) / period >= 7.0
    assert least_period_s((1, 1, 10)) / period >= 0.95
    assert found.partition_records()[-1]["version"] <= 20


@pytest.mark.parametrize("layer_costs", ["macs", "measured"])
def test_layouts_of_capacities_1_1_2_settle_after_two_moves(layer_costs: str) -> None:
    trial = run_pipeline_trial("ftpipehd", (1, 1, 2), 220, pipeline={"layer_costs": layer_costs})
    assert len(trial.partition_records()) <= 1 + 2
    assert trial.mean_period_s(190, 210) <= 1.01 * least_period_s((1, 1, 2))


@pytest.mark.parametrize("capacities", [(1, 1, 1), (1, 1, 4), (4, 1, 2), (1, 3, 2, 5)])
def test_the_layout_found_from_macs_is_within_one_percent_of_the_best(capacities: tuple[float, ...]) -> None:
    """Reports of the stages teach the planner what it was not told."""
    pipeline = {"layer_costs": "macs", "schedule": {"speed": 1.0}}
    trial = run_pipeline_trial("ftpipehd", capacities, 90, pipeline=pipeline)
    assert trial.mean_period_s(65, 85) <= 1.01 * least_period_s(capacities)
    assert len(trial.partition_records()) <= 1 + 3


def test_a_link_that_becomes_slow_is_left_by_what_receivers_measure() -> None:
    result = measure_slow_link(batches=64)
    assert result["order"] == ["device0", "device2"]
    assert result["adapted_s"] < result["nominal_s"] / 10
    assert result["batches"] <= 10


def test_a_trial_is_reproducible() -> None:
    first, second = (run_pipeline_trial("ftpipehd", (1, 2), 6).commit_times() for _ in range(2))
    assert first == second
    assert [reached for _, reached in first] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_figures_and_charts_use_all_pieces() -> None:
    results = {f"1:1:{k}": measure_speed((1, 1, k), batches=45) for k in (1, 2, 10)}
    results |= {
        "slow link": measure_slow_link(batches=64),
        "adaptation": measure_adaptation(batches=50, change=15),
        "replication/lan": measure_replication("lan", batches=24),
    }
    results |= {
        f"recovery/{name}/lan": measure_recovery(name, "lan", crash_batch=60, offsets=[0.5]) for name in RECOVERIES
    }
    results |= {"live crashes": {"seconds": [0.2], "notice_s": [0.01], "flows_s": [0.05], "rolled_back": 0}}
    workload = DIGITS._replace(batches=40)
    results |= {"batches in flight": measure_fill(workload)}
    results |= {f"learning/{name}/0": measure_learning(workload, name, 0, None) for name in VARIANTS}
    figures = {figure.name: figure for figure in BENCHMARK.figures(results)}
    assert results["learning/ours, with crashes/0"]["deaths"] == 4
    assert results["learning/ours/0"]["time_s"] < results["learning/one device/0"]["time_s"]
    assert figures["period above the optimum from 10 batches after a change"].meets_goal
    assert figures["speed relative to unlimited batches in flight"].meets_goal
    assert figures["replication, 1 Gbit/s: throughput lost"].meets_goal
    assert figures["crash, 1 Gbit/s: time until batches flow again, as published over ours"].measured > 5
    assert figures["crash, 1 Gbit/s: cost, as published over ours"].measured > 3
    assert len(BENCHMARK.charts(results)) == 4
    names = [piece.name for piece in BENCHMARK.pieces(BenchmarkContext(quick=True))]
    assert len(names) == len(set(names))
