"""simulate, lab, serve, join and plan take the same job and the same task object."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from potluck.run.live_addresses import free_loopback_address
from potluck.run.live_run import LiveRun
from tests.run.small_job import SMALL, run_small_job
from tests.run.user_parts import build_task
from tests.time_limits import within

JOB = {**SMALL, "task": "mine"}  # no module of that name: the task is given as an object


class _Invitations(potluck.LiveObserver):
    """Hands a token to the devices once they can join."""

    def __init__(self) -> None:
        self.tokens: queue.Queue[str] = queue.Queue()

    def on_listening(self, run: LiveRun) -> None:
        for device in run.store.job.fleet.members:
            self.tokens.put(run.issue_token(device.name))


def _weights(result: potluck.Result) -> list[torch.Tensor]:
    assert result.status == "done", result.reason
    assert result.module is not None
    return list(result.module.state_dict().values())


def test_a_lab_trains_a_task_object_as_the_simulated_world_does(tmp_path: Path) -> None:
    simulated = run_small_job("simulated", tmp_path / "simulated", build_task(), task="mine")
    live = run_small_job("lab", tmp_path / "lab", build_task(), task="mine")
    assert all(
        torch.equal(actual, reference) for actual, reference in zip(_weights(simulated), _weights(live), strict=True)
    )


def test_a_task_that_cannot_be_pickled_is_refused_before_a_lab_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # a script, not a notebook
    task = potluck.Task(lambda: nn.Linear(12, 4), build_task().data)
    with pytest.raises(potluck.UserError, match="cannot be handed to the devices of a lab"):
        potluck.lab(JOB, task=task, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_serve_and_join_with_a_task_on_both_sides(tmp_path: Path) -> None:
    """Devices run as threads in this test; each prepares its own task object."""
    address, invitations = free_loopback_address().removeprefix("tcp/"), _Invitations()
    job = {**JOB, "fleet": {"devices": [{"name": "d", "flops": "20 MFLOP/s"}], "lease": "2 s"}}
    ended: list[str] = []

    def take_part() -> None:
        token = invitations.tokens.get(timeout=60)
        options = potluck.JoinOptions(threads=1)
        ended.append(potluck.join(f"tcp/{address}", token, name="d", task=build_task(), options=options))

    device = threading.Thread(target=take_part)
    device.start()
    with within(90):
        options = potluck.ServeOptions(listen=address)
        result = potluck.serve(job, folder=tmp_path / "run", task=build_task(), options=options, observer=invitations)
    device.join(30)
    assert _weights(result)
    assert ended == ["the run is over"]


def test_a_task_object_can_be_planned() -> None:
    plan = potluck.plan(JOB, task=build_task())
    assert plan.to_dict()["devices"][0]["round_s"]["sequential"] > 0
    assert plan.rounds[0].devices == ("d-0", "d-1")


def test_a_live_run_without_a_token_or_with_timing_only_is_refused(tmp_path: Path) -> None:
    with pytest.raises(potluck.UserError, match="requires a join token"):
        potluck.join("tcp/127.0.0.1:1", name="d")
    with pytest.raises(potluck.UserError, match="a live run always trains"):
        potluck.serve({**JOB, "timing_only": True}, folder=tmp_path / "run", task=build_task())
