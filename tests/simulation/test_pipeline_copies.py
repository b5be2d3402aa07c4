"""How far a pipeline may be ahead of its copies, what a death then costs, and who continues without the first stage.

Counted are committed batches that are computed again: those between the version at which the run stood (every stage had
applied and reported them) and the version from which it continues.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.errors import SettingError
from tests.simulation.pipelines import (
    PipelineJournal,
    TracedNetwork,
    assert_same_weights,
    data_of,
    deep_net,
    delayed_sgd,
    job_of,
)

BATCHES, BATCH = 40, 8
THIN = {"up": "20 kbit/s", "down": "20 kbit/s", "latency": "5 ms"}  # a step takes longer than a batch
NEVER = {"every": 0, "on_change": False, "join": False}


@cache
def bench() -> TracedNetwork:
    torch.manual_seed(0)
    return TracedNetwork(deep_net(), data_of((5,), samples=40))


def run(
    folder: Path, faults: list[dict[str, Any]], link: Any = THIN, **settings: Any
) -> tuple[potluck.Result, PipelineJournal]:
    """Four devices with two layers or one each."""
    devices = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": link} for index in range(4)]
    pipeline = {
        "batch": BATCH,
        "partition": {"kind": "cuts", "after": [1, 2, 4]},
        "retry": "2 s",
        "patience": "200 s",
        "adaptation": NEVER,
        **settings.pop("pipeline", {}),
    }
    fleet = {"faults": faults, "lease": "1 s"}
    job = job_of(devices, fleet=fleet, pipeline=pipeline, stop={"rounds": BATCHES}, **settings)
    result = bench().simulate(job, folder)
    journal = PipelineJournal(folder)
    assert result.status == "done", result.reason
    assert len(journal.committed()) == BATCHES
    reference = delayed_sgd(
        bench().net, bench().data, BATCHES, BATCH, journal.versions(), layer_of=bench().layer_of
    )  # fmt: skip
    assert_same_weights(result.module, reference)
    return result, journal


def crash(device: str, at: float) -> dict[str, Any]:
    return {"kind": "crash", "device": device, "at": f"{at} s"}


def redone(journal: PipelineJournal) -> int:
    return sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back"))


@pytest.mark.parametrize(("device", "at"), [("d1", 8.0), ("d2", 9.1), ("d3", 10.3)])
def test_one_death_costs_at_most_two_batches_on_thin_links_too(tmp_path: Path, device: str, at: float) -> None:
    _, journal = run(tmp_path / "run", [crash(device, at)])
    assert 4 < journal.instants("lost")[0].fields["round"] < BATCHES
    assert redone(journal) <= 2


def test_a_larger_lag_costs_less_time_and_no_limit_the_least(tmp_path: Path) -> None:
    """What the bound costs where a step takes longer to send than a batch to compute."""
    strict, loose, unlimited = (
        run(tmp_path / str(lag), [], pipeline={"replication": {"kind": "incremental", "lag": lag}})
        for lag in (2, 20, 0)
    )
    assert unlimited[0].summary["time_s"] <= loose[0].summary["time_s"] < strict[0].summary["time_s"]
    assert strict[1].instants("partition")[0].fields["stride"] == 1
    assert 1 < loose[1].instants("partition")[0].fields["stride"] <= 10


def test_a_larger_lag_bounds_the_cost_too(tmp_path: Path) -> None:
    _, journal = run(tmp_path / "run", [crash("d2", 5.3)], pipeline={"replication": {"kind": "incremental", "lag": 6}})
    assert redone(journal) <= 6


@pytest.mark.parametrize("dead", [("d1", "d2"), ("d1", "d2", "d3")])
def test_neighbours_that_die_together_cost_as_many_batches_as_the_copies_at_the_coordinator_lag(
    tmp_path: Path, dead: tuple[str, ...]
) -> None:
    replication = {"kind": "incremental", "central": 1}
    _, journal = run(tmp_path / "run", [crash(device, 9.1) for device in dead], pipeline={"replication": replication})
    assert journal.instants("lost")[0].fields["round"] > 4
    assert redone(journal) <= 2


def test_stages_do_not_wait_for_a_dead_device_that_only_held_copies(tmp_path: Path) -> None:
    """The fourth device is left out of the layout, and so it may be the one that holds copies."""
    cuts = {"partition": {"kind": "cuts", "after": [1, 3]}}
    _, calm = run(tmp_path / "calm", [], link="lan", pipeline=cuts)
    assert "d3" not in calm.instants("partition")[0].fields["order"]
    result, journal = run(tmp_path / "run", [crash("d3", 0.4)], link="lan", pipeline=cuts)
    orders = [instant.fields["order"] for instant in journal.instants("partition")]
    assert orders == [orders[0]] * len(orders), "the layout stays"
    assert redone(journal) == 0
    assert result.summary["time_s"] < 10


# --- the data ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copies", [2, 3])
def test_with_copies_of_the_data_the_next_device_continues_with_the_same_batches(tmp_path: Path, copies: int) -> None:
    """The reference goes through the batches in their order, so equal weights mean that none is lost or doubled."""
    faults = [crash(f"d{index}", 0.4 + index / 2) for index in range(copies - 1)]
    result, journal = run(tmp_path / "run", faults, link="lan", pipeline={"data_copies": copies})
    assert [instant.node for instant in journal.instants("lost")] == [f"d{index}" for index in range(copies - 1)]
    assert journal.instants("partition")[-1].fields["order"][0] == f"d{copies - 1}"
    assert result.summary["samples"] == BATCHES * BATCH
    assert redone(journal) <= 2 * (copies - 1)


def test_more_copies_of_the_data_than_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"pipeline\.data_copies: 5 devices cannot hold the data, the fleet has 4"):
        run(tmp_path / "run", [], pipeline={"data_copies": 5})


def test_copies_of_the_data_are_counted_with_those_that_are_named() -> None:
    def holders(**pipeline: Any) -> tuple[str, ...]:
        job = job_of(4, pipeline=pipeline)
        assert job.pipeline is not None
        return job.pipeline.data_holders([device.name for device in job.fleet.members])

    assert holders() == ("d0",)
    assert holders(data_copies=2) == ("d0", "d1")
    assert holders(central="d2", data_copies=2) == ("d2", "d0")
    assert holders(sources=["d3"], data_copies=2) == ("d0", "d3")
    assert holders(sources=["d3"], data_copies=3) == ("d0", "d3", "d1")
