"""Deaths in a pipeline: which device takes over, how far the run rolls back, and that momentum is kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.loops.pipeline.pipeline_planner import PipelinePlan, PipelinePlanner
from tests.simulation.pipelines import (
    PipelineJournal,
    TracedNetwork,
    assert_same_weights,
    data_of,
    deep_net,
    delayed_sgd,
    job_of,
)

BATCHES, BATCH = 24, 8
CUTS = {"kind": "cuts", "after": [1, 2, 4]}


@cache
def bench() -> TracedNetwork:
    torch.manual_seed(0)
    return TracedNetwork(deep_net(), data_of((5,), samples=40))


def devices(count: int = 4) -> list[dict[str, Any]]:
    return [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": "lan"} for index in range(count)]


def run(
    folder: Path, faults: list[dict[str, Any]], count: int = 4, **settings: Any
) -> tuple[potluck.Result, PipelineJournal]:
    fleet = {"faults": faults, "lease": "1 s"}
    pipeline = {
        "batch": BATCH,
        "partition": CUTS,
        "retry": "200 ms",
        "patience": "30 s",
        **settings.pop("pipeline", {}),
    }
    job = job_of(devices(count), fleet=fleet, pipeline=pipeline, stop={"rounds": BATCHES}, **settings)
    result = bench().simulate(job, folder)
    return result, PipelineJournal(folder)


def check(result: potluck.Result, journal: PipelineJournal) -> None:
    """The run is complete and its weights equal those of the reference loop."""
    assert result.status == "done", result.reason
    assert len(journal.committed()) == BATCHES
    journal.check_schedules()
    net, data = bench().net, bench().data
    assert_same_weights(
        result.module, delayed_sgd(net, data, BATCHES, BATCH, journal.versions(), layer_of=bench().layer_of)
    )


def crash(device: str, at: float = 0.5, restart: str | None = None) -> dict[str, Any]:
    return {"kind": "crash", "device": device, "at": f"{at} s", **({"restart": restart} if restart else {})}


@pytest.mark.parametrize("device", ["d1", "d2", "d3"])
@pytest.mark.parametrize("at", [0.2, 0.35, 0.5])
def test_one_death_costs_at_most_one_committed_batch(tmp_path: Path, device: str, at: float) -> None:
    result, journal = run(tmp_path / "run", [crash(device, at)])
    check(result, journal)
    lost = journal.instants("lost")
    assert [instant.node for instant in lost] == [device]
    assert 0 < lost[0].fields["round"] < BATCHES
    assert sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back")) <= 1
    _, after = journal.instants("partition")
    assert device not in after.fields["order"]
    assert after.fields["version"] >= lost[0].fields["round"] - 1
    (recovery,) = journal.spans("recover")
    assert recovery.end - recovery.start < 0.1


@pytest.mark.parametrize("dead", [("d1", "d2"), ("d2", "d3"), ("d1", "d2", "d3")])
def test_neighbours_that_die_together_cost_the_batches_since_the_checkpoint(
    tmp_path: Path, dead: tuple[str, ...]
) -> None:
    result, journal = run(tmp_path / "run", [crash(device) for device in dead], checkpoint=5)
    check(result, journal)
    assert set(journal.instants("partition")[-1].fields["order"]) == {"d0", "d1", "d2", "d3"} - set(dead)
    assert sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back")) <= 6


@pytest.mark.parametrize("kind", ["incremental", "periodic"])
@pytest.mark.parametrize("dead", [("d1", "d2"), ("d1", "d2", "d3")])
def test_a_copy_at_the_coordinator_saves_neighbours_that_die_together(
    tmp_path: Path, kind: str, dead: tuple[str, ...]
) -> None:
    """Without it and without checkpoints the run would start over."""
    lost = {}
    for central in (0, 4):
        replication = {"kind": kind, "central": central}
        result, journal = run(
            tmp_path / f"{central}", [crash(device, 0.45) for device in dead], pipeline={"replication": replication}
        )
        check(result, journal)
        assert {instant.node for instant in journal.instants("lost")} == set(dead)
        lost[central] = sum(
            instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back")
        )
    assert lost[4] <= 4 + 2 < lost[0]


def test_two_devices_that_are_not_neighbours_may_die_together(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [crash("d1"), crash("d3")])
    check(result, journal)
    assert sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back")) <= 1


def test_another_device_with_the_data_replaces_a_dead_first_stage(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [crash("d0")], pipeline={"sources": ["d2"]})
    check(result, journal)
    assert journal.instants("partition")[-1].fields["order"][0] == "d2"
    assert sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back")) <= 1


@pytest.mark.parametrize("dead", ["d0", "d1", "d2", "d3"])
def test_the_layout_after_any_single_death_is_planned_in_advance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: str
) -> None:
    asked: list[tuple[tuple[str, ...], bool]] = []
    plan = PipelinePlanner.plan_layout

    def spied(self: PipelinePlanner, candidates: Sequence[str]) -> PipelinePlan:
        layout = plan(self, candidates)
        asked.append((tuple(candidates), layout in self._loss_plans.values()))
        return layout

    monkeypatch.setattr(PipelinePlanner, "plan_layout", spied)
    result, journal = run(tmp_path / "run", [crash(dead)], pipeline={"sources": ["d2"]})
    check(result, journal)
    left = [name for name in ("d0", "d2", "d1", "d3") if name != dead]
    first = left[0]
    expected_order = (first, *(name for name in ("d0", "d1", "d2", "d3") if name in left and name != first))
    assert dead not in journal.instants("partition")[-1].fields["order"]
    assert (expected_order, True) in asked


def test_without_the_data_the_run_stops_and_can_be_resumed(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [crash("d0", 0.6)])
    assert result.status == "failed"
    assert "d0 holds the data and is gone; the run can be resumed from batch" in result.reason
    reached = result.summary["rounds"]
    assert reached > 0
    assert reached >= journal.instants("lost")[0].fields["round"] - 1, "what the others had was saved"
    task = potluck.Task(copy.deepcopy(bench().net), bench().data)
    resumed = potluck.resume(tmp_path / "run", task=task, overrides=["fleet.faults=[]"], threads=0)
    assert resumed.status == "done"
    assert len(PipelineJournal(tmp_path / "run").committed()) == BATCHES


def test_the_run_waits_for_the_only_device_with_the_data(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [crash("d0", 0.5, "3 s")])
    check(result, journal)
    assert journal.instants("partition")[-1].fields["order"][0] == "d0"


def test_a_device_that_returns_gets_layers_again(tmp_path: Path) -> None:
    adaptation = {"horizon": 0}
    result, journal = run(
        tmp_path / "run", [crash("d2", 0.3, "100 ms")], 3, pipeline={"adaptation": adaptation, "partition": "optimal"}
    )
    check(result, journal)
    layouts = [instant.fields["order"] for instant in journal.instants("partition")]
    assert "d2" not in layouts[1]
    assert "d2" in layouts[-1]


def test_a_device_that_slows_down_gets_fewer_layers(tmp_path: Path) -> None:
    slow = {"kind": "slow", "device": "d1", "at": "300 ms", "factor": 0.2, "lasting": "1000 s"}
    result, journal = run(tmp_path / "run", [slow], 3, pipeline={"partition": {"kind": "optimal", "subset": False}})
    check(result, journal)
    layer_counts = [_layers_of(instant.fields, "d1") for instant in journal.instants("partition")]
    assert layer_counts[-1] < layer_counts[0]


@pytest.mark.parametrize("recovery", ["neighbour", "restart"])
@pytest.mark.parametrize("replication", [{"kind": "periodic", "chain": 3, "central": 4}, {"kind": "none"}])
def test_other_recovery_modes_are_consistent_too(tmp_path: Path, recovery: str, replication: dict[str, Any]) -> None:
    result, journal = run(
        tmp_path / "run", [crash("d2")], pipeline={"recovery": recovery, "replication": replication}, checkpoint=5
    )
    check(result, journal)
    if recovery == "neighbour":
        assert journal.instants("partition")[1].fields["cuts"] == [2, 3]


def test_as_published_the_batch_timer_notices_and_versions_mix(tmp_path: Path) -> None:
    """Nothing is rolled back, but the dead device's layers come from its last copy, without momentum."""
    net, data = bench().net, bench().data
    recovery = {"kind": "repartition", "notice": "timer", "consistent": False}
    replication = {"kind": "periodic", "chain": 3, "central": 6, "optimizer_state": False}
    result, journal = run(tmp_path / "run", [crash("d2")], pipeline={"recovery": recovery, "replication": replication})
    assert result.status == "done"
    assert len(journal.committed()) == BATCHES
    assert journal.instants("rolled back") == []
    reference = delayed_sgd(net, data, BATCHES, BATCH, journal.versions(), layer_of=bench().layer_of)
    assert result.module is not None
    actual = result.module.state_dict()
    assert any(not torch.equal(tensor, actual[name]) for name, tensor in reference.state_dict().items())


@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_lost_messages_only_cost_time(tmp_path: Path, fraction: float) -> None:
    lossy = {"kind": "lose", "device": "*", "at": "0 s", "share": fraction, "lasting": "1000 s"}
    result, journal = run(tmp_path / "run", [lossy], pipeline={"patience": "300 s"})
    check(result, journal)
    assert journal.instants("lost") == []


def test_a_brief_link_outage_costs_no_batch(tmp_path: Path) -> None:
    cut = {"kind": "partition", "device": "d1", "at": "400 ms", "lasting": "500 ms"}
    result, journal = run(tmp_path / "run", [cut])
    check(result, journal)
    assert journal.instants("lost") == []
    assert journal.instants("rolled back") == []


def _layers_of(partition: dict[str, Any], device: str) -> int:
    ends = [0, *partition["cuts"], 6]
    index = partition["order"].index(device)
    return int(ends[index + 1] - ends[index])


def test_a_run_whose_devices_keep_restarting_fails_at_its_patience(tmp_path: Path) -> None:
    """Without copies a batch is committed now and then and lost again: that is not progress."""
    restarts = [{"kind": "restart", "device": "*", "every": "100 ms"}]
    lost = {"replication": "none", "recovery": "restart", "sources": ["d0", "d1", "d2", "d3"], "patience": "5 s"}
    result, _ = run(tmp_path / "run", restarts, pipeline=lost)
    assert result.status == "failed"
    assert "no progress for 5 s" in result.reason
    assert result.summary["time_s"] < 120
