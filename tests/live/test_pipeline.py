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
from potluck.job import Job, dump_job, make
from potluck.model.layer_chain import trace_layers
from potluck.run import Result, lab
from potluck.task import Task, TaskSettings, build_task
from tests.live.running import LEASE, LIMIT_S, Scene, Teller, differing, nothing
from tests.live.shells import Shells, until
from tests.simulation.pipelines import SGD, Story, expected, same
from tests.time_limits import within

BATCHES, BATCH = 60, 8
LAYERS = 8
LOST_S = 1.0  # until a killed device is noticed
RECOVERED_S = 2.0  # from a death to the next batch that is committed
NEVER = {"every": 0, "on_change": False, "join": False}
PIPELINE: dict[str, Any] = {
    "batch": BATCH,
    "optimizer": SGD,
    "partition": {"kind": "cuts", "after": [1, 3, 5]},
    "retry": "300 ms",
    "patience": "60 s",
    "adaptation": NEVER,
}


def fleet(count: int = 4, **settings: Any) -> dict[str, Any]:
    """Slow on paper, so that a batch takes a while and the processor has hardly anything to do."""
    return {"devices": [{"name": "d", "count": count, "flops": "2 MFLOP/s"}], "lease": LEASE, **settings}


def job_of(**settings: Any) -> Job:
    pipeline = {**PIPELINE, **settings.pop("pipeline", {})}
    data = {"kind": "synthetic", "train": 200, "test": 20}
    task = {"model": "mlp", "data": data, "options": {"hidden": [16] * (LAYERS - 1)}}
    tables = {"recipe": "ftpipehd", "task": task, "fleet": fleet(), "stop": {"rounds": BATCHES}, "evaluate": 0}
    return make({**tables, "pipeline": pipeline, **settings})


class Stage(Scene):
    """A live pipeline under way, as its plot sees it."""

    async def reach(self, batches: int) -> None:
        """Wait until so many batches are committed."""
        while self.progress.round < batches:
            await asyncio.sleep(0.01)


Plot = Callable[[Stage], Coroutine[Any, Any, None]]


def run_live(folder: Path, plot: Plot = nothing, **settings: Any) -> tuple[Result, Story]:
    """Lead a pipeline whose devices are processes; the plot begins with the run and must be over at its end."""
    teller = Teller(plot, Stage)  # type: ignore[arg-type]
    options = potluck.LabOptions(LIMIT_S, play_faults=False)
    with within(LIMIT_S):
        result = potluck.lab(job_of(**settings), folder=folder, options=options, observer=teller)
    teller.check(result)
    return result, Story(folder)


def resume_live(folder: Path, **settings: Any) -> tuple[Result, Story]:
    (folder / "job.toml").write_text(dump_job(job_of(**settings)))
    with within(LIMIT_S):
        return lab.resume_live(folder), Story(folder)


def check(result: Result, scenario: Story) -> None:
    """Trained to the end, no batch skipped or twice, and as the reference trains: so momentum went on as well."""
    assert result.status == "done", result.reason
    assert len(scenario.committed()) == BATCHES
    task, version = _task(), versions(scenario)
    reference = expected(
        task.build_module(0), task.data, BATCHES, BATCH, lambda batch, layer: version[batch], layer_of=_layer_of()
    )
    same(result.module, reference)


def versions(scenario: Story) -> list[int]:
    """The version that each committed batch met on stage 0, and so on all others."""
    used = {
        (span.fields["term"], span.fields["batch"]): span.fields["version"]
        for span in scenario.spans("forward")
        if span.fields["stage"] == 0
    }
    return [used[term, batch] for batch, term in enumerate(scenario.committed())]


@cache
def _task() -> Task:
    settings = job_of().task
    assert isinstance(settings, TaskSettings)
    return build_task(settings, None)


@cache
def _layer_of() -> dict[str, int]:
    layers = trace_layers(_task().build_module(0), tuple(_task().data.shape)).layers
    return {name: number for number, layer in enumerate(layers) for name in layer.parameters}


def rolled_back(scenario: Story) -> int:
    """Batches that were committed and done again."""
    return sum(note.fields["before"] - note.fields["to"] for note in scenario.instants("rolled back"))


def recovery_s(scenario: Story, killed: float) -> float:
    """Seconds from a death to the next batch that is committed in a new layout."""
    (started_at,) = [note.at for note in scenario.instants("partition") if note.at > killed][:1]
    return next(note.at for note in scenario.instants("committed") if note.at > started_at) - killed


# --- deaths -----------------------------------------------------------------------------------------------------------


def test_all_workers_are_killed_one_after_another(tmp_path: Path) -> None:
    killed: list[float] = []

    async def plot(stage: Stage) -> None:
        for name in ("d-2", "d-1", "d-3"):
            await stage.reach(stage.progress.round + 10)
            killed.append(stage.kill(name))
            await stage.reach(stage.progress.round + 2)

    result, scenario = run_live(tmp_path / "run", plot)
    check(result, scenario)
    scenario.check_gates()
    assert [note.node for note in scenario.instants("lost")] == ["d-2", "d-1", "d-3"]
    for note, at in zip(scenario.instants("lost"), killed, strict=True):
        assert 0 <= note.at - at < LOST_S
        assert recovery_s(scenario, at) < RECOVERED_S
    assert scenario.instants("partition")[-1].fields["order"] == ["d-0"]
    assert rolled_back(scenario) <= 3


@pytest.mark.long
@pytest.mark.parametrize("name", ["d-1", "d-2", "d-3"])
@pytest.mark.parametrize("batch", [0, 1, 7, 23])
def test_any_worker_may_be_killed_at_any_batch(tmp_path: Path, name: str, batch: int) -> None:
    killed: list[float] = []

    async def plot(stage: Stage) -> None:
        await stage.reach(batch)
        killed.append(stage.kill(name))

    result, scenario = run_live(tmp_path / "run", plot)
    check(result, scenario)
    assert rolled_back(scenario) <= 1


@pytest.mark.parametrize("names", [("d-1", "d-2"), pytest.param(("d-2", "d-3"), marks=pytest.mark.long)])
def test_two_neighbours_are_killed_at_once(tmp_path: Path, names: tuple[str, str]) -> None:
    async def plot(stage: Stage) -> None:
        await stage.reach(14)
        stage.kill(*names)

    result, scenario = run_live(tmp_path / "run", plot, checkpoint=10)
    check(result, scenario)
    assert {note.node for note in scenario.instants("lost")} == set(names)
    assert rolled_back(scenario) <= 10 + 1, "not further than to the checkpoint"


def test_another_who_holds_the_data_takes_the_central_place(tmp_path: Path) -> None:
    async def plot(stage: Stage) -> None:
        await stage.reach(10)
        stage.kill("d-0")

    result, scenario = run_live(tmp_path / "run", plot, pipeline={"sources": ["d-2"]})
    check(result, scenario)
    assert scenario.instants("partition")[-1].fields["order"][0] == "d-2"
    assert rolled_back(scenario) <= 1


def test_without_the_data_the_run_stops_and_is_resumed(tmp_path: Path) -> None:
    async def plot(stage: Stage) -> None:
        await stage.reach(12)
        stage.kill("d-0")

    result, scenario = run_live(tmp_path / "run", plot, pipeline={"patience": "1 s"})
    check_stopped(result.summary, scenario)
    again, scenario = resume_live(tmp_path / "run")
    check(again, scenario)


@pytest.mark.long
def test_a_lab_without_the_data_stops_and_says_so(shells: Shells) -> None:
    """As a user sees it, who then resumes it."""
    crash = {"kind": "crash", "device": "d-0", "at": "900 ms"}
    path, run = shells.folder / "job.toml", shells.folder / "run"
    path.write_text(dump_job(job_of(fleet=fleet(faults=[crash]), pipeline={"patience": "2 s"})))
    lab = shells("lab", path, "--out", run, "--json")
    assert lab.end() == 1, lab.err
    check_stopped(json.loads(lab.out), Story(run))
    again = shells("resume", run, "--set", "fleet.faults=[]", "--json")
    assert again.end() == 0, again.err
    assert json.loads(again.out)["rounds"] == len(Story(run).committed()) == BATCHES


@pytest.mark.long
def test_a_killed_lab_is_resumed_from_its_checkpoint(shells: Shells) -> None:
    path, run = shells.folder / "job.toml", shells.folder / "run"
    path.write_text(dump_job(job_of(checkpoint=10)))
    lab = shells("lab", path, "--out", run, "--json")
    until("a checkpoint", lambda: any(int(file.stem) >= 10 for file in run.glob("checkpoints/*.safetensors")))
    os.kill(lab.pid, signal.SIGKILL)
    again = shells("resume", run, "--json")
    assert again.end() == 0, again.err
    assert json.loads(again.out)["rounds"] == len(Story(run).committed()) == BATCHES


def check_stopped(summary: dict[str, Any], scenario: Story) -> None:
    """It says what to do, and what the others had is saved."""
    assert summary["status"] == "failed"
    assert "d-0 holds the data and is gone; the run can be resumed from batch" in summary["reason"]
    (lost,) = scenario.instants("lost")
    assert summary["rounds"] >= lost.fields["round"] - 1 > 0


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_frozen_worker_is_given_up_and_does_no_harm_when_it_thaws(tmp_path: Path) -> None:
    async def plot(stage: Stage) -> None:
        await stage.reach(10)
        stage.signal("d-2", signal.SIGSTOP)
        try:
            await stage.reach(16)
        finally:
            stage.signal("d-2", signal.SIGCONT)

    result, scenario = run_live(tmp_path / "run", plot)
    check(result, scenario)
    assert [note.node for note in scenario.instants("lost")] == ["d-2"]
    assert rolled_back(scenario) <= 1


@pytest.mark.parametrize("lease", [1.0, 10.0])
def test_a_link_drops_for_three_seconds(tmp_path: Path, lease: float) -> None:
    """Beyond the lease it costs the device its place, within the lease nothing but time."""
    cut = {"kind": "partition", "device": "d-1", "at": "500 ms", "lasting": "3 s"}
    result, scenario = run_live(tmp_path / "run", fleet=fleet(faults=[cut], lease=lease))
    check(result, scenario)
    assert [note.node for note in scenario.instants("lost")] == (["d-1"] if lease < 3 else [])
    assert rolled_back(scenario) <= (lease < 3)


# --- peace ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [[], [2, 4]])
def test_processes_compute_what_the_simulated_devices_do(tmp_path: Path, after: list[int]) -> None:
    settings: dict[str, Any] = {"pipeline": {"partition": {"kind": "cuts", "after": after}}, "stop": {"rounds": 20}}
    live, _ = run_live(tmp_path / "live", **settings)
    simulated = potluck.simulate(job_of(**settings), folder=tmp_path / "simulated", threads=0)
    assert live.status == simulated.status == "done"
    assert differing(tmp_path / "live", tmp_path / "simulated") == []
    assert live.summary["loss"] == simulated.summary["loss"]
