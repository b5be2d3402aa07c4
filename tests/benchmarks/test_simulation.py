from __future__ import annotations

from itertools import islice

import pytest
import torch

import potluck
from benchmarks.benchmark import Results
from benchmarks.simulation import BENCHMARK, fleet_scale
from benchmarks.simulation.client_throughput import clients_of, run_bare_fedavg
from benchmarks.simulation.simulation_workload import MODELS, fleet_job, peers_job
from potluck.model import zoo


@pytest.mark.parametrize(("model", "parameters"), [("mlp", 25_450), ("cnn", 1_199_882)])
def test_the_models_have_the_promised_size(model: str, parameters: int) -> None:
    module = zoo.build_model(MODELS[model].name, **MODELS[model].options)
    assert sum(parameter.numel() for parameter in module.parameters()) == parameters


def test_both_sides_of_the_comparison_compute_the_same() -> None:
    job = peers_job("mlp", 3, seed=5, devices=7)
    model, clients, lr = clients_of(job)
    assert [tuple(inputs.shape) for inputs, _ in clients] == [(32, 1, 28, 28)] * 7
    before = [parameter.clone() for parameter in model.parameters()]
    list(islice(run_bare_fedavg(model, clients, lr), 3))
    ours = potluck.simulate(job).module
    assert ours is not None
    for start, bare, trained in zip(before, model.parameters(), ours.parameters(), strict=True):
        assert (bare - start).abs().max() > 1e-4
        torch.testing.assert_close(trained, bare, rtol=1e-4, atol=1e-6)


def test_the_large_fleet_is_uneven_and_complete() -> None:
    job = fleet_job(1000, 1, 0)
    assert len(job.fleet.members) == 1000
    assert len({device.flops for device in job.fleet.members}) >= 5
    assert len({device.link for device in job.fleet.members}) >= 4


def test_scale_counts_rounds_after_the_first() -> None:
    result = fleet_scale.measure_fleet(200, 3, 0)
    assert result["start_s"] > 0
    assert result["rounds_per_s"] > 0
    assert "rounds_per_s" not in fleet_scale.measure_fleet(200, 1, 0)


def test_figures_come_from_the_results() -> None:
    speeds = {"bare_clients_per_s": 100.0, "potluck_clients_per_s": 80.0, "bare_cpu_ms": 10.0, "potluck_cpu_ms": 11.0}
    fleet = {"start_s": 2.0, "rounds_per_s": 19.0, "virtual_s": 4.0}
    measured: dict[str, object] = {
        "rounds": 500,
        "warm_rounds": 100,
        "warm_bytes": 100,
        "end_bytes": 94,
        "series": [[1, 90.0], [2, 100.0]],
    }
    results: Results = {"mlp/0": speeds, "cnn/0": speeds, "10000/0": fleet, "100000/0": fleet, "memory": measured}
    verdicts = [figure.meets_goal for figure in BENCHMARK.figures(results) if figure.goal is not None]
    assert verdicts == [True, False, False, True, False]
    assert len(BENCHMARK.charts(results)) == 2


@pytest.mark.long
def test_memory_is_measured_in_a_child_process() -> None:
    result = fleet_scale.measure_memory_in_child(20, 0)
    assert result["end_bytes"] > 50 * 2**20
    assert len(result["series"]) >= 20
