"""Duplex transfers: layers are sent back as soon as they are merged, and the result does not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import potluck
from potluck.job import make
from potluck.loops.device_estimates import DeviceEstimates
from potluck.planning.segments import WorkerCosts, forecast_duplex
from potluck.run.rounds_setup import RoundsSetup

LINK = {"up": "20 Mbit/s", "down": "20 Mbit/s", "latency": "2 ms", "overhead": "0.2 ms"}
WIDE = {"link": {"up": "100 Gbit/s", "down": "100 Gbit/s", "latency": "0 ms", "overhead": "0 ms"}}


def make_job(transfer: str, **settings: Any) -> potluck.Job:
    tables: dict[str, Any] = {
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "recipe": "sync-sgd",
        "stop": {"rounds": 12},
        "rounds": {"batching": {"size": 32}, "transfer": transfer},
        "fleet": {"coordinator": WIDE, "devices": [{"name": "d", "count": 3, "flops": "2 GFLOP/s", "link": LINK}]},
        "evaluate": 0,
        "checkpoint": 0,
    }
    return make({**tables, **settings})


def weights(job: potluck.Job) -> dict[str, torch.Tensor]:
    result = potluck.simulate(job)
    assert result.status == "done", result.reason
    assert result.module is not None
    return dict(result.module.state_dict())


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg", "fedadam"])
def test_the_weights_equal_those_of_sequential_transfers(recipe: str) -> None:
    plain, ahead = weights(make_job("sequential", recipe=recipe)), weights(make_job("duplex", recipe=recipe))
    assert all(torch.equal(plain[name], ahead[name]) for name in plain)


def test_batch_norm_statistics_are_transferred() -> None:
    task = {"model": "resnet20", "data": {"kind": "synthetic", "shape": [3, 32, 32], "train": 48, "test": 10}}
    stop = {"rounds": 3}
    plain, ahead = (weights(make_job(kind, task=task, stop=stop)) for kind in ("sequential", "duplex"))
    assert all(torch.equal(plain[name], ahead[name]) for name in plain)


def test_a_steady_round_takes_as_long_as_the_planner_predicts() -> None:
    job = make_job("duplex", timing_only=True, stop={"rounds": 40})
    setup = RoundsSetup.from_job(job, None, None)
    estimates = DeviceEstimates.from_prior(setup.link_prior("d-0"))
    seconds = job.rounds.transfer.layer_times_s(setup.whole_model_costs("d-0"), estimates, 32)
    forecast = forecast_duplex([WorkerCosts(*seconds)], estimates.down.overhead, estimates.round_trip / 2)
    measured = potluck.simulate(job).summary["time_s"] / 40
    assert forecast.overlaps
    assert measured == pytest.approx(forecast.iteration, rel=0.10)


def test_duplex_is_faster_if_transfers_take_as_long_as_computation() -> None:
    optimal, ahead = (
        potluck.simulate(make_job(kind, timing_only=True)).summary["time_s"] for kind in ("optimal", "duplex")
    )
    assert ahead < 0.85 * optimal


@pytest.mark.parametrize("mbit", [5, 60, 1000])
@pytest.mark.parametrize(("latency", "overhead"), [("0 ms", "0 ms"), ("10 ms", "1 ms")])
def test_no_baseline_is_faster(mbit: int, latency: str, overhead: str) -> None:
    """Neither than duplex nor, without it, than the optimal plan; on links that decide everything or hardly matter."""
    link = {"up": f"{mbit} Mbit/s", "down": f"{mbit} Mbit/s", "latency": latency, "overhead": overhead}
    fleet = {"coordinator": WIDE, "devices": [{"name": "d", "count": 3, "flops": "2 GFLOP/s", "link": link}]}
    kinds = ("sequential", "layer-by-layer", "ibatch", "mg-wfbp", "optimal", "duplex")
    jobs = {kind: make_job(kind, fleet=fleet, timing_only=True) for kind in kinds}
    seconds = {kind: potluck.simulate(job).summary["time_s"] for kind, job in jobs.items()}
    assert seconds["duplex"] <= 1.001 * min(seconds.values())
    assert seconds["optimal"] <= 1.001 * min(seconds[kind] for kind in kinds[:-2])


def test_a_device_that_dies_during_a_round_loses_only_its_own_update() -> None:
    """The draft is discarded and the round committed without the device, as with any other transfer."""
    faults = [{"kind": "crash", "device": "d-1", "at": "1.5 s", "restart": "1 s"}]
    fleet = {
        "coordinator": WIDE, "faults": faults,
        "devices": [{"name": "d", "count": 3, "flops": "2 GFLOP/s", "link": LINK}],
    }  # fmt: skip
    result = potluck.simulate(make_job("duplex", fleet=fleet, stop={"rounds": 20}))
    assert result.status == "done", result.reason
    assert result.summary["rounds"] == 20
    assert result.summary["updates"] < 60


def test_duplex_is_refused_if_devices_train_submodels() -> None:
    with pytest.raises(potluck.errors.SettingError, match="whole models"):
        potluck.simulate(make_job("sequential", rounds={"transfer": "duplex", "submodel": "heterofl"}, recipe="fedavg"))
