"""Deterministic benchmark figures: if one of them changes, the behaviour of the program changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import potluck
from benchmarks.benchmark import BenchmarkContext
from benchmarks.decoupled.decoupled_training import device_cost_ratios
from benchmarks.decoupled.decoupled_workload import CASES, DecoupledCut
from benchmarks.dropout.dropout_workload import TrainingPlan, TunedSettings, dropout_job
from benchmarks.overlap import BENCHMARK, overlap_forecast
from benchmarks.overlap.overlap_figures import duplex_gains, largest_reduction, time_reduction
from benchmarks.overlap.overlap_forecast import measure_planning, speed_sensitivity
from benchmarks.overlap.overlap_simulation import OverlapSetting, simulate_setting
from benchmarks.overlap.overlap_workload import (
    BANDWIDTHS,
    NETWORKS,
    admissible_flops,
    middle_flops,
    overlap_workload,
)
from benchmarks.pipeline.pipeline_experiments import least_period_s
from benchmarks.pipeline.pipeline_trial import run_pipeline_trial
from benchmarks.simulation.fleet_scale import measure_fleet
from benchmarks.simulation.simulation_workload import fleet_job, peers_job
from benchmarks.streaming import rate_race, scadles_testbed
from potluck.data import parse
from potluck.job import make
from potluck.journal import Scalar, read_journal
from potluck.model.decoupled import decouple
from potluck.planning.groups import even_groups
from potluck.run.rounds_setup import RoundsSetup
from potluck.settings import decode_settings
from potluck.task import TaskSettings

ROWS = (1, 5, 7, 9)  # bandwidths, of ten: those where the gains of both networks peak, and one to either side


def _forecast(network: str, batch: int) -> Mapping[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap_forecast, "BANDWIDTHS", [BANDWIDTHS[row] for row in ROWS])
        return overlap_forecast.forecast_case(network, batch)


@pytest.fixture(scope="module")
def vgg() -> Mapping[str, Any]:
    return _forecast("vgg19", 16)


@pytest.fixture(scope="module")
def googlenet() -> Mapping[str, Any]:
    return _forecast("googlenet", 32)


def test_simulated_time_of_the_large_fleet_is_reproducible() -> None:
    first, second = (measure_fleet(1000, 5, seed)["virtual_s"] for seed in (0, 0))
    assert first == second
    assert measure_fleet(1000, 5, 1)["virtual_s"] != first


def test_a_round_of_the_large_fleet_takes_the_expected_work() -> None:
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
    load = overlap_workload(network, 16)
    assert (len(load.param_bytes), sum(load.param_bytes)) == (layers, 4 * parameters)


def test_the_device_balances_all_workloads_where_the_published_gains_peak() -> None:
    assert middle_flops() == pytest.approx(939.6e9, rel=1e-3)
    balances = [overlap_workload(network, batch).balance_bandwidth for network in NETWORKS for batch in (16, 32)]
    assert min(balances) >= 1e9
    assert max(balances) <= 5e9
    assert min(balances) * max(balances) == pytest.approx(5e18)


def test_cuts_against_sequential(vgg: Mapping[str, Any], googlenet: Mapping[str, Any]) -> None:
    assert 100 * largest_reduction([vgg], "optimal") == pytest.approx(42.17, abs=0.01)
    assert 100 * largest_reduction([googlenet], "optimal") == pytest.approx(37.76, abs=0.01)
    for row in (*vgg["rows"], *googlenet["rows"]):
        assert (
            time_reduction(row, "optimal")
            >= max(time_reduction(row, rule) for rule in ("layer-by-layer", "ibatch", "mg-wfbp")) - 1e-12
        )
        assert 0 <= time_reduction(row, "optimal") < 0.5


def test_duplex_is_forecast_where_communication_dominates_and_never_loses(
    vgg: Mapping[str, Any], googlenet: Mapping[str, Any]
) -> None:
    for row in (*vgg["rows"], *googlenet["rows"]):
        assert ("duplex_s" in row) == (row["communication"] >= 1)
    assert min(duplex_gains([googlenet])) >= 0.16
    assert min(duplex_gains([vgg])) >= 0.23  # its first dense layer holds 72 % of the bytes and is cut inside


def test_a_finer_workload_has_the_same_total_work() -> None:
    """Split as `Layout.split` does; the computation belongs to the last segment of a layer."""
    load = overlap_workload("vgg19", 16)
    finer = load.split_large_layers(0.05)
    assert sum(finer.param_bytes) == sum(load.param_bytes)
    assert finer.compute_s == pytest.approx(load.compute_s, rel=1e-12)
    assert max(finer.param_bytes) <= 0.05 * sum(load.param_bytes) + 1
    job = make(
        {
            "task": {"model": "vgg19", "data": {"kind": "synthetic", "shape": [3, 224, 224], "classes": 1000}},
            "recipe": "duplex", "fleet": "kitchen-table", "stop": {"rounds": 1}, "timing_only": True,
            "rounds": {"batching": {"size": 16}},
        }
    )  # fmt: skip
    costs = RoundsSetup.from_job(job, None, None).costs
    assert [flop > 0 for flop in costs.forward_flop] == [seconds > 0 for seconds in finer.forward]
    assert costs.pull_bytes == pytest.approx(finer.param_bytes, abs=4)


def test_forecasts_equal_the_recorded_ones(vgg: Mapping[str, Any], googlenet: Mapping[str, Any]) -> None:
    recorded = _recorded_pieces("overlap")
    for name, forecasts in (("vgg19/16", vgg), ("googlenet/32", googlenet)):
        rows = [recorded[name]["rows"][row] for row in ROWS]
        assert dict(_numbers(forecasts)) == pytest.approx(dict(_numbers({**recorded[name], "rows": rows})), rel=1e-9)


@pytest.mark.parametrize("recipe", ["dynacomm", "duplex"])
def test_simulated_rounds_take_the_recorded_time(recipe: str) -> None:
    balanced = BANDWIDTHS[5]
    rows = _recorded_pieces("overlap")["vgg19, simulated"]["rows"]
    recorded = next(
        row for row in rows if (row["recipe"], row["gbit_s"], row["workers"]) == (recipe, balanced / 1e9, 1)
    )
    result = simulate_setting(OverlapSetting("vgg19", balanced), recipe, recorded["forecast_s"])
    assert result["simulated_s"] == pytest.approx(recorded["simulated_s"], rel=1e-9)


def test_the_pipeline_gain_equals_the_recorded_one() -> None:
    """With known costs and a full pipeline, as it was recorded."""
    recorded = _recorded_pieces("pipeline")["1:1:10"]
    full = {"layer_costs": "profiles", "schedule": {"speed": 1.0}}
    assert least_period_s((1, 1, 10)) == pytest.approx(recorded["bound_s"], rel=1e-9)
    for name, recipe, pipeline in (("PipeDream", "pipedream", {}), ("ours, order searched", "ftpipehd", full)):
        trial = run_pipeline_trial(recipe, (1, 1, 10), 120, pipeline=pipeline)
        assert trial.mean_period_s(40, 110) == pytest.approx(recorded[name]["period_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("recipe", "time_s", "nbytes", "samples"),
    [
        ("ddl", 8.64139289946064, 37_567_284_000, 5_120),
        ("scadles", 38.06278066570799, 21_123_671_040, 23_605),
        ("scadles-plus", 5.608129140776934, 6_031_321_296, 5_440),
    ],
)
def test_rounds_on_streams_take_the_recorded_time(recipe: str, time_s: float, nbytes: int, samples: int) -> None:
    tables = {
        "task": scadles_testbed.task_table(),
        "fleet": scadles_testbed.fleet_table(),
        "recipe": recipe,
        "stream": scadles_testbed.stream_table("S2"),
        "stop": {"rounds": 5},
        "timing_only": True,
        "evaluate": 0,
    }
    summary = potluck.simulate(tables).summary
    assert summary["time_s"] == pytest.approx(time_s, rel=1e-9)
    assert (summary["bytes"], summary["samples"]) == (nbytes, samples)


@pytest.mark.parametrize(("policy", "dropped", "peak"), [("persistence", 0, 7_853), ("truncation", 7_244, 615)])
def test_buffers_account_for_every_sample_that_streamed_in(policy: str, dropped: int, peak: int) -> None:
    summary = potluck.simulate(rate_race.buffer_job("S1", policy, 20, 0)).summary
    streams = summary["streams"]
    assert summary["time_s"] == pytest.approx(33.0276530515137, rel=1e-9)
    assert (streams["streamed"], streams["trained"]) == (19_424, 12_180)
    assert (streams["dropped"], streams["peak"]) == (dropped, peak)
    assert streams["streamed"] == streams["trained"] + streams["dropped"] + streams["buffered"]


@pytest.mark.parametrize(
    ("method", "time_s", "rounds", "nbytes"),
    [
        ("distreal-ordered", 39.86870295685343, 4, 518_424),
        ("distreal", 39.86879394211803, 4, 636_160),
        ("heterofl", 32.53756946402766, 3, 225_576),
        ("fjord", 30.092005994135754, 3, 225_576),
        ("fedavg", 46.20013250275776, 1, 159_040),
    ],
)
def test_rounds_with_dropout_take_the_recorded_time(method: str, time_s: float, rounds: int, nbytes: int) -> None:
    summary = potluck.simulate(_dropout_job(method)).summary
    assert summary["time_s"] == pytest.approx(time_s, rel=1e-9)
    assert (summary["rounds"], summary["bytes"]) == (rounds, nbytes)


def test_mini_batches_train_the_recorded_fractions(tmp_path: Path) -> None:
    potluck.simulate(_dropout_job("distreal"), folder=tmp_path / "run")
    records = read_journal(tmp_path / "run" / "journal.jsonl")
    fractions = [record.value for record in records if isinstance(record, Scalar) and record.name == "share"]
    assert len(fractions) == 40
    assert fractions[:3] == pytest.approx([0.18527027027027027, 0.4852702702702702, 0.2703378378378378], rel=1e-9)
    assert sum(fractions) / len(fractions) == pytest.approx(0.4434222972972973, rel=1e-9)


def _dropout_job(method: str) -> potluck.Job:
    job = dropout_job(TrainingPlan("digits", "within", method, 3, 0), TunedSettings(0.05))
    return msgspec.structs.replace(job, timing_only=True)


_CUTS = [(case.name, cut) for case in CASES for cut in (case.cut, *case.others)]


@pytest.mark.parametrize(("name", "cut"), _CUTS, ids=str)
def test_the_cost_of_a_device_with_one_group_equals_the_recorded_one(name: str, cut: DecoupledCut) -> None:
    recorded = _recorded_pieces("decoupled").get(f"{name}/decoupled {cut.label}/0")
    if recorded is None:
        pytest.skip("this case was not measured since it was added")
    case = next(case for case in CASES if case.name == name)
    info = parse(case.data).info(None)
    classes = len(info.classes)
    options = {"classes": classes, "channels": info.shape[0]} if ":" in case.model else {}
    task = decode_settings({"model": case.model, "data": case.data, "options": options}, TaskSettings)
    module = task.model_factory(info.shape, classes)()
    result = device_cost_ratios(decouple(module, info.shape, even_groups(classes, cut.groups), cut.depth), cut)
    assert list(result["forward_macs"]) == recorded["forward_macs"]
    assert list(result["training_macs"]) == recorded["training_macs"]
    assert result["weights"] == pytest.approx(recorded["weights"], rel=1e-9)


def test_eight_workers_share_the_servers(vgg: Mapping[str, Any]) -> None:
    for row in vgg["rows"]:
        assert row["together_s"]["optimal"] >= row["iteration_s"]["optimal"]
        assert row["together_s"]["optimal"] <= 2 * row["iteration_s"]["optimal"]


def test_the_planner_is_timed_at_the_published_depth() -> None:
    result = measure_planning(3, 0)
    assert result["layers"] == 152
    assert all(0 < milliseconds < 5 for milliseconds in result["milliseconds"])


def test_quick_and_full_overlap_forecast_the_same() -> None:
    quick, full = (BENCHMARK.pieces(BenchmarkContext(quick)) for quick in (True, False))
    forecasts = [{p.name: p.parameters for p in pieces[1:] if "simulated" not in p.name} for pieces in (quick, full)]
    assert forecasts[0] == forecasts[1]
    assert {p.name: p.parameters for p in quick[1:]}.items() <= {p.name: p.parameters for p in full[1:]}.items()
    assert len(BANDWIDTHS) == 10
    assert (BANDWIDTHS[0], BANDWIDTHS[-1]) == pytest.approx((1e8, 1e10))


def test_the_largest_cut_hardly_depends_on_the_choice_of_the_device() -> None:
    slowest, fastest = admissible_flops()
    assert slowest < middle_flops() < fastest < 1.25 * slowest
    result = speed_sensitivity()
    assert 100 * result["slowest"] == pytest.approx(42.07, abs=0.01)
    assert 100 * result["fastest"] == pytest.approx(41.96, abs=0.01)


def _recorded_pieces(name: str) -> Mapping[str, Any]:
    """The recorded pieces behind the documented results."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / f"{name}.json"
    pieces: Mapping[str, Any] = json.loads(path.read_text())["pieces"]
    return pieces


def _numbers(result: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested tables and lists, by its path."""
    if isinstance(result, float | int):
        yield path, result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _numbers(value, f"{path}.{key}")
    elif isinstance(result, list | tuple):
        for index, value in enumerate(result):
            yield from _numbers(value, f"{path}[{index}]")
