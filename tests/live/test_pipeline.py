"""A pipeline of real processes: stages are killed, frozen and cut off, and the weights stay those of the reference."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import potluck
from benchmarks.faults.busy_processors import busy_processors
from potluck.job import Job, dump_job, make
from potluck.model.layer_chain import trace_layers
from potluck.run import Result
from potluck.task import Task, TaskSettings, build_task
from tests.live.command_processes import CommandRunner, wait_until
from tests.live.live_scenarios import LEASE, LIMIT_S, RunControl, ScenarioObserver, differing_tensors, nothing
from tests.simulation.pipelines import SGD, PipelineJournal, assert_same_weights, delayed_sgd
from tests.time_limits import within

BATCHES, BATCH = 60, 8
LAYERS = 8
LOST_S = 1.0  # until a killed device is noticed
RECOVERED_S = 2.0  # from a death to the next batch that is committed
LAG = 2  # batches that one death may cost
NEVER = {"every": 0, "on_change": False, "join": False}
PIPELINE: dict[str, Any] = {
    "batch": BATCH,
    "optimizer": SGD,
    "partition": {"kind": "cuts", "after": [1, 3, 5]},
    "schedule": {"vertical_sync": True},  # the first stage, which survives, tells the versions of all
    "retry": "300 ms",
    "patience": "60 s",
    "adaptation": NEVER,
}


def fleet(count: int = 4, **settings: Any) -> dict[str, Any]:
    """Nominally slow devices, so that a batch takes a while but needs hardly any real computation."""
    return {"devices": [{"name": "d", "count": count, "flops": "2 MFLOP/s"}], "lease": LEASE, **settings}


def job_of(**settings: Any) -> Job:
    pipeline = {**PIPELINE, **settings.pop("pipeline", {})}
    data = {"kind": "synthetic", "train": 200, "test": 20}
    task = {"model": "mlp", "data": data, "options": {"hidden": [16] * (LAYERS - 1)}}
    tables = {"recipe": "ftpipehd", "task": task, "fleet": fleet(), "stop": {"rounds": BATCHES}, "evaluate": 0}
    return make({**tables, "pipeline": pipeline, **settings})


class PipelineControl(RunControl):
    """Controls a running pipeline from a scenario."""

    async def reach(self, batches: int) -> None:
        """Wait until this many batches are committed."""
        while self.progress.round < batches:
            await asyncio.sleep(0.01)

    async def lose(self, name: str, times: int) -> None:
        """Kill a device and wait until the run has noticed; on a busy machine reports of earlier batches come first."""
        self.kill(name)
        while sum(event.node == name for event in PipelineJournal(self.folder).instants("lost")) < times:
            await asyncio.sleep(0.05)


PipelineScenario = Callable[[PipelineControl], Coroutine[Any, Any, None]]


def run_live(
    folder: Path, scenario: PipelineScenario = nothing, *, emulate_fleet: bool = True, **settings: Any
) -> tuple[Result, PipelineJournal]:
    """Run a pipeline whose devices are processes; the scenario starts with the run and must finish before it ends."""
    observer = ScenarioObserver(scenario, PipelineControl)  # type: ignore[arg-type]
    options = potluck.LabOptions(LIMIT_S, emulate_fleet=emulate_fleet, play_faults=False)
    with within(LIMIT_S):
        result = potluck.lab(job_of(**settings), folder=folder, options=options, observer=observer)
    observer.check(result)
    return result, PipelineJournal(folder)


def resume_live(folder: Path, **settings: Any) -> tuple[Result, PipelineJournal]:
    (folder / "job.toml").write_text(dump_job(job_of(**settings)))
    with within(LIMIT_S):
        return potluck.resume(folder), PipelineJournal(folder)


def check(result: Result, journal: PipelineJournal) -> None:
    """The run is complete, no batch was skipped or repeated, and the weights, and so momentum, equal the reference."""
    assert result.status == "done", result.reason
    assert len(journal.committed()) == BATCHES
    task, version = _task(), versions(journal)
    reference = delayed_sgd(
        task.build_module(0), task.data, BATCHES, BATCH, lambda batch, layer: version[batch], layer_of=_layer_of()
    )
    assert_same_weights(result.module, reference)


def versions(journal: PipelineJournal) -> list[int]:
    """The weight version that each committed batch used on stage 0, and so on all stages."""
    used = {
        (span.fields["term"], span.fields["batch"]): span.fields["version"]
        for span in journal.spans("forward")
        if span.fields["stage"] == 0
    }
    return [used[term, batch] for batch, term in enumerate(journal.committed())]


@cache
def _task() -> Task:
    settings = job_of().task
    assert isinstance(settings, TaskSettings)
    return build_task(settings, None)


@cache
def _layer_of() -> dict[str, int]:
    layers = trace_layers(_task().build_module(0), tuple(_task().data.shape)).layers
    return {name: number for number, layer in enumerate(layers) for name in layer.parameters}


def wide_task(width: int) -> dict[str, Any]:
    data = {"kind": "synthetic", "train": 400, "test": 20}
    return {"model": "mlp", "data": data, "options": {"hidden": [width] * (LAYERS - 1)}}


def rolled_back(journal: PipelineJournal) -> int:
    """Batches that were committed and then computed again."""
    return sum(instant.fields["before"] - instant.fields["to"] for instant in journal.instants("rolled back"))


def recovery_s(journal: PipelineJournal, killed: float) -> float:
    """Seconds from a death to the next batch that is committed in a new layout."""
    (started_at,) = [instant.at for instant in journal.instants("partition") if instant.at > killed][:1]
    return next(instant.at for instant in journal.instants("committed") if instant.at > started_at) - killed


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_all_workers_are_killed_one_after_another(tmp_path: Path) -> None:
    killed: list[float] = []

    async def scenario(control: PipelineControl) -> None:
        for name in ("d-2", "d-1", "d-3"):
            await control.reach(control.progress.round + 10)
            killed.append(control.kill(name))
            await control.reach(control.progress.round + 2)

    result, journal = run_live(tmp_path / "run", scenario)
    check(result, journal)
    journal.check_schedules()
    assert [instant.node for instant in journal.instants("lost")] == ["d-2", "d-1", "d-3"]
    for instant, at in zip(journal.instants("lost"), killed, strict=True):
        assert 0 <= instant.at - at < LOST_S
        assert recovery_s(journal, at) < RECOVERED_S
    assert journal.instants("partition")[-1].fields["order"] == ["d-0"]
    assert rolled_back(journal) <= 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["d-1", "d-2", "d-3"])
@pytest.mark.parametrize("batch", [0, 1, 7, 23])
def test_any_worker_may_be_killed_at_any_batch(tmp_path: Path, name: str, batch: int) -> None:
    killed: list[float] = []

    async def scenario(control: PipelineControl) -> None:
        await control.reach(batch)
        killed.append(control.kill(name))

    result, journal = run_live(tmp_path / "run", scenario)
    check(result, journal)
    assert rolled_back(journal) <= 1


@pytest.mark.parametrize("names", [("d-1", "d-2"), pytest.param(("d-2", "d-3"), marks=pytest.mark.long)])
def test_two_neighbours_are_killed_at_once(tmp_path: Path, names: tuple[str, str]) -> None:
    async def scenario(control: PipelineControl) -> None:
        await control.reach(14)
        control.kill(*names)

    result, journal = run_live(tmp_path / "run", scenario, checkpoint=10)
    check(result, journal)
    assert {instant.node for instant in journal.instants("lost")} == set(names)
    assert rolled_back(journal) <= 10 + 1, "not further than to the checkpoint"


@pytest.mark.parametrize(("settings", "successor"), [({"sources": ["d-2"]}, "d-2"), ({"data_copies": 2}, "d-1")])
def test_another_device_with_the_data_becomes_the_first_stage(
    tmp_path: Path, settings: dict[str, Any], successor: str
) -> None:
    async def scenario(control: PipelineControl) -> None:
        await control.reach(10)
        control.kill("d-0")

    result, journal = run_live(tmp_path / "run", scenario, pipeline=settings)
    check(result, journal)
    assert journal.instants("partition")[-1].fields["order"][0] == successor
    assert rolled_back(journal) <= LAG
    assert result.summary["samples"] == BATCHES * BATCH


def test_one_death_costs_at_most_two_batches_on_a_busy_machine(tmp_path: Path) -> None:
    """Devices compute as fast as they can, and other processes compete with them; a step takes as long as a batch."""
    killed = 0

    async def scenario(control: PipelineControl) -> None:
        nonlocal killed
        for name, times in (("d-1", 1), ("d-2", 1), ("d-3", 1), ("d-1", 2)):
            await control.reach(control.progress.round + 20)
            await control.lose(name, times)
            killed += 1
            await control.reach(control.progress.round + 5)
            control.devices.start_device(name)

    with busy_processors():
        result, journal = run_live(
            tmp_path / "run",
            scenario,
            emulate_fleet=False,
            task={**wide_task(256)},
            stop={"rounds": 160},
            pipeline={"partition": "optimal", "adaptation": {}, "retry": "2 s"},
        )
    assert result.status == "done", result.reason
    assert len(journal.committed()) == 160
    assert killed == 4
    for instant in journal.instants("rolled back"):
        assert instant.fields["before"] - instant.fields["to"] <= LAG


@pytest.mark.long
@pytest.mark.wall_clock
def test_a_busy_machine_does_not_make_layers_move(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "task": wide_task(256),
        "stop": {"rounds": 300},
        "pipeline": {"partition": "optimal", "adaptation": {}},
    }
    with busy_processors():
        result, journal = run_live(tmp_path / "run", emulate_fleet=False, **settings)
    assert result.status == "done", result.reason
    assert journal.instants("lost") == []
    assert len(journal.instants("partition")) <= 1 + 3


def test_without_the_data_the_run_stops_and_is_resumed(tmp_path: Path) -> None:
    async def scenario(control: PipelineControl) -> None:
        await control.reach(12)
        control.kill("d-0")

    result, journal = run_live(tmp_path / "run", scenario, pipeline={"patience": "1 s"})
    check_stopped(result.summary, journal)
    resumed, journal = resume_live(tmp_path / "run")
    check(resumed, journal)


@pytest.mark.long
def test_a_lab_without_the_data_stops_and_says_so(start_command: CommandRunner) -> None:
    """The command as a user runs it, and then resumes it."""
    crash = {"kind": "crash", "device": "d-0", "at": "900 ms"}
    path, run = start_command.folder / "job.toml", start_command.folder / "run"
    path.write_text(dump_job(job_of(fleet=fleet(faults=[crash]), pipeline={"patience": "2 s"})))
    lab = start_command("lab", path, "--out", run, "--json")
    assert lab.end() == 1, lab.err
    check_stopped(json.loads(lab.out), PipelineJournal(run))
    resumed = start_command("resume", run, "--set", "fleet.faults=[]", "--json")
    assert resumed.end() == 0, resumed.err
    assert json.loads(resumed.out)["rounds"] == len(PipelineJournal(run).committed()) == BATCHES


@pytest.mark.long
def test_a_killed_lab_is_resumed_from_its_checkpoint(start_command: CommandRunner) -> None:
    path, run = start_command.folder / "job.toml", start_command.folder / "run"
    path.write_text(dump_job(job_of(checkpoint=10)))
    lab = start_command("lab", path, "--out", run, "--json")
    wait_until("a checkpoint", lambda: any(int(file.stem) >= 10 for file in run.glob("checkpoints/*.safetensors")))
    os.kill(lab.pid, signal.SIGKILL)
    resumed = start_command("resume", run, "--json")
    assert resumed.end() == 0, resumed.err
    assert json.loads(resumed.out)["rounds"] == len(PipelineJournal(run).committed()) == BATCHES


def check_stopped(summary: dict[str, Any], journal: PipelineJournal) -> None:
    """The error says what to do, and the layers of the other devices are saved."""
    assert summary["status"] == "failed"
    assert "d-0 holds the data and is gone; the run can be resumed from batch" in summary["reason"]
    (lost,) = journal.instants("lost")
    assert summary["rounds"] >= lost.fields["round"] - 1 > 0


# --- frozen devices and links -----------------------------------------------------------------------------------------


def test_a_frozen_worker_is_removed_and_does_no_harm_when_it_thaws(tmp_path: Path) -> None:
    async def scenario(control: PipelineControl) -> None:
        await control.reach(10)
        control.signal("d-2", signal.SIGSTOP)
        try:
            await control.reach(16)
        finally:
            control.signal("d-2", signal.SIGCONT)

    result, journal = run_live(tmp_path / "run", scenario)
    check(result, journal)
    assert [instant.node for instant in journal.instants("lost")] == ["d-2"]
    assert rolled_back(journal) <= 1


@pytest.mark.parametrize("lease", [1.0, 10.0])
def test_a_link_drops_for_three_seconds(tmp_path: Path, lease: float) -> None:
    """An outage longer than the lease excludes the device; a shorter one only costs time."""
    cut = {"kind": "partition", "device": "d-1", "at": "500 ms", "lasting": "3 s"}
    result, journal = run_live(tmp_path / "run", fleet=fleet(faults=[cut], lease=lease))
    check(result, journal)
    assert [instant.node for instant in journal.instants("lost")] == (["d-1"] if lease < 3 else [])
    assert rolled_back(journal) <= (lease < 3)


# --- no faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [[], [2, 4]])
def test_processes_compute_the_same_weights_as_simulated_devices(tmp_path: Path, after: list[int]) -> None:
    settings: dict[str, Any] = {"pipeline": {"partition": {"kind": "cuts", "after": after}}, "stop": {"rounds": 20}}
    live, _ = run_live(tmp_path / "live", **settings)
    simulated = potluck.simulate(job_of(**settings), folder=tmp_path / "simulated", threads=0)
    assert live.status == simulated.status == "done"
    assert differing_tensors(tmp_path / "live", tmp_path / "simulated") == []
    assert live.summary["loss"] == simulated.summary["loss"]
