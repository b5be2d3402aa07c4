"""Figures that no machine and no noise can change: where one of them moves, something changed that should not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import potluck
from potluck.bench.experiment import Context
from potluck.bench.overlap import BENCHMARK
from potluck.bench.overlap.cases import cut, gains, largest
from potluck.bench.overlap.forecast import forecast_case, planning_time, sensitivity
from potluck.bench.overlap.workload import BANDWIDTHS, NETWORKS, admissible_flops, device_flops, workload
from potluck.bench.simulation.scale import measure
from potluck.bench.simulation.workload import fleet_job, peers_job


@pytest.fixture(scope="module")
def vgg() -> Mapping[str, Any]:
    return forecast_case("vgg19", 16)


@pytest.fixture(scope="module")
def googlenet() -> Mapping[str, Any]:
    return forecast_case("googlenet", 32)


def test_virtual_time_of_the_large_fleet_is_the_same_each_time() -> None:
    first, again = (measure(1000, 5, seed)["virtual_s"] for seed in (0, 0))
    assert first == again
    assert measure(1000, 5, 1)["virtual_s"] != first


def test_a_round_of_the_large_fleet_costs_what_it_should() -> None:
    summary = potluck.simulate(fleet_job(1000, 3, 0)).summary
    model_bytes = 4 * 1_199_882
    assert summary["updates"] == 300
    assert summary["bytes"] == pytest.approx(600 * model_bytes, rel=0.001)


def test_the_peers_workload_is_one_batch_per_device_and_round() -> None:
    summary = potluck.simulate(peers_job("mlp", 2, 0)).summary
    assert (summary["updates"], summary["samples"]) == (200, 200 * 32)


@pytest.mark.parametrize(
    ("network", "layers", "parameters"),
    [("resnet152", 156, 60_192_808), ("vgg19", 19, 143_667_240), ("googlenet", 58, 6_624_904)],
)
def test_the_networks_are_the_published_ones(network: str, layers: int, parameters: int) -> None:
    load = workload(network, 16)
    assert (len(load.param_bytes), sum(load.param_bytes)) == (layers, 4 * parameters)


def test_the_device_balances_all_workloads_where_the_published_gains_peak() -> None:
    assert device_flops() == pytest.approx(939.6e9, rel=1e-3)
    balances = [workload(network, batch).balance for network in NETWORKS for batch in (16, 32)]
    assert min(balances) >= 1e9
    assert max(balances) <= 5e9
    assert min(balances) * max(balances) == pytest.approx(5e18)


def test_cuts_against_sequential(vgg: Mapping[str, Any], googlenet: Mapping[str, Any]) -> None:
    assert 100 * largest([vgg], "optimal") == pytest.approx(42.17, abs=0.01)
    assert 100 * largest([googlenet], "optimal") == pytest.approx(37.76, abs=0.01)
    for row in (*vgg["rows"], *googlenet["rows"]):
        assert cut(row, "optimal") >= max(cut(row, rule) for rule in ("layer-by-layer", "ibatch", "mg-wfbp")) - 1e-12
        assert 0 <= cut(row, "optimal") < 0.5


def test_duplex_is_forecast_where_communication_dominates_and_never_loses(
    vgg: Mapping[str, Any], googlenet: Mapping[str, Any]
) -> None:
    for row in (*vgg["rows"], *googlenet["rows"]):
        assert ("duplex_s" in row) == (row["communication"] >= 1)
    assert min(gains([googlenet])) >= 0.15
    assert 0 <= min(gains([vgg])) < 0.15  # three quarters of its bytes are in one layer


def test_eight_workers_share_the_servers(vgg: Mapping[str, Any]) -> None:
    for row in vgg["rows"]:
        assert row["together_s"]["optimal"] >= row["iteration_s"]["optimal"]
        assert row["together_s"]["optimal"] <= 2 * row["iteration_s"]["optimal"]


def test_the_planner_is_timed_at_the_published_depth() -> None:
    found = planning_time(3, 0)
    assert found["layers"] == 152
    assert all(0 < milliseconds < 5 for milliseconds in found["milliseconds"])


def test_quick_and_full_overlap_forecast_the_same() -> None:
    quick, full = (BENCHMARK.pieces(Context(quick)) for quick in (True, False))
    assert [piece.parameters for piece in quick[1:]] == [piece.parameters for piece in full[1:]]
    assert len(BANDWIDTHS) == 10
    assert (BANDWIDTHS[0], BANDWIDTHS[-1]) == pytest.approx((1e8, 1e10))


def test_the_largest_cut_hardly_depends_on_the_choice_of_the_device() -> None:
    slowest, fastest = admissible_flops()
    assert slowest < device_flops() < fastest < 1.25 * slowest
    found = sensitivity()
    assert 100 * found["slowest"] == pytest.approx(42.07, abs=0.01)
    assert 100 * found["fastest"] == pytest.approx(41.96, abs=0.01)
