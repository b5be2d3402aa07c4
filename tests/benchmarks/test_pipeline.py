"""The pipeline benchmark on few batches."""

from __future__ import annotations

import pytest

from benchmarks.benchmark import BenchmarkContext
from benchmarks.pipeline import BENCHMARK
from benchmarks.pipeline.pipeline_experiments import (
    RECOVERIES,
    measure_adaptation,
    measure_recovery,
    measure_replication,
    measure_speed,
)
from benchmarks.pipeline.pipeline_learning import DIGITS, VARIANTS, measure_learning
from benchmarks.pipeline.pipeline_trial import BATCH, measured_chain_costs, run_pipeline_trial


def test_the_profile_is_that_of_the_network() -> None:
    chain = measured_chain_costs()
    assert chain.layer_count == len(chain.cut_bytes_per_sample) == len(chain.param_bytes) == 53
    assert sum(chain.param_bytes) == pytest.approx(9e6, rel=0.05)
    assert 2 < chain.stage_flop(0, 52, BATCH) < 10, "seconds per batch on the reference device"


def test_uneven_devices_are_faster_than_pipedream_by_what_was_published() -> None:
    result = measure_speed((1, 1, 10), batches=30)
    baseline = result["PipeDream"]["period_s"]
    assert baseline / result["ours, order given"]["period_s"] >= 6.8
    assert baseline / result["ours, order searched"]["period_s"] >= 7.0
    assert result["bound_s"] / result["ours, order searched"]["period_s"] >= 0.95


def test_a_trial_is_reproducible() -> None:
    first, second = (run_pipeline_trial("ftpipehd", (1, 2), 6).commit_times() for _ in range(2))
    assert first == second
    assert [reached for _, reached in first] == [1, 2, 3, 4, 5, 6]


def test_figures_and_charts_use_all_pieces() -> None:
    results = {f"1:1:{k}": measure_speed((1, 1, k), batches=24) for k in (1, 10)}
    results |= {
        "adaptation": measure_adaptation(batches=50, change=15),
        "replication/lan": measure_replication("lan", batches=24),
    }
    results |= {
        f"recovery/{name}/lan": measure_recovery(name, "lan", crash_batch=60, offsets=[0.5]) for name in RECOVERIES
    }
    results |= {"live crashes": {"seconds": [0.2], "notice_s": [0.01], "flows_s": [0.05], "rolled_back": 0}}
    workload = DIGITS._replace(batches=40)
    results |= {f"learning/{name}/0": measure_learning(workload, name, 0, None) for name in VARIANTS}
    figures = {figure.name: figure for figure in BENCHMARK.figures(results)}
    assert results["learning/ours, with crashes/0"]["deaths"] == 4
    assert results["learning/ours/0"]["time_s"] < results["learning/one device/0"]["time_s"]
    assert figures["period above the optimum from 10 batches after a change"].meets_goal
    assert figures["replication, 1 Gbit/s: throughput lost"].meets_goal
    assert figures["crash, 1 Gbit/s: time until batches flow again, as published over ours"].measured > 5
    assert figures["crash, 1 Gbit/s: cost, as published over ours"].measured > 3
    assert len(BENCHMARK.charts(results)) == 4
    names = [piece.name for piece in BENCHMARK.pieces(BenchmarkContext(quick=True))]
    assert len(names) == len(set(names))
