"""kill -9 of the coordinator, then `potluck resume`: devices rejoin by themselves and nothing committed is lost."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import potluck
from potluck.run import Result
from potluck.run.live_addresses import free_loopback_address
from tests.live.command_processes import Command, CommandRunner, wait_until, write_job
from tests.live.live_scenarios import LIMIT_S, SMALL, check_committed_rounds, differing_tensors

ROUNDS = 60


@contextmanager
def joined(serving: Command) -> Iterator[None]:
    """Start every device that `serve` invites; each looks for the coordinator until the run ends."""
    context = multiprocessing.get_context("forkserver")
    invitations = wait_until("the invitations", serving.invitations)
    options = potluck.JoinOptions(threads=1, throttle=0.2, timeout_s=LIMIT_S)
    devices = [
        context.Process(target=potluck.join, args=invitation, kwargs={"name": name, "options": options}, name=name)
        for name, invitation in invitations.items()
    ]
    for device in devices:
        device.start()
    try:
        yield
        for device in devices:
            device.join(30.0)
            assert device.exitcode == 0, f"{device.name} did not end with the run"
    finally:
        for device in devices:
            device.kill()
            device.join()


def _committed(run: Path) -> int:
    """The version of the newest checkpoint."""
    return max((int(path.stem) for path in run.glob("checkpoints/*.safetensors")), default=0)


def _has_reached(run: Path, version: int) -> bool:
    return _committed(run) >= version


def _kill_and_resume(start_command: CommandRunner, versions: list[int]) -> None:
    """Kill the coordinator whenever so many rounds are committed and resume it; compare with an undisturbed run."""
    folder = start_command.folder
    settings = {"recipe": "sync-sgd", "stop": {"rounds": ROUNDS}}
    job, run = write_job(folder, **settings), folder / "run"
    address = free_loopback_address().removeprefix("tcp/")
    leading = start_command("serve", job, "--listen", address, "--out", run, "--json")
    with joined(leading):
        for version in versions:
            wait_until(f"version {version}", partial(_has_reached, run, version))
            os.kill(leading.pid, signal.SIGKILL)
            leading.end()
            committed = _committed(run)
            assert committed < ROUNDS, "it was over before it was killed"
            leading = start_command("resume", run, "--json")
        assert leading.end() == 0, leading.err
    summary = json.loads(leading.out)
    check_committed_rounds(run, Result(summary["status"], summary["reason"], summary, run, None), ROUNDS)
    potluck.simulate({**SMALL, **settings}, folder=folder / "simulated")
    assert differing_tensors(run, folder / "simulated") == []


def test_a_run_resumed_after_a_coordinator_kill_ends_as_if_uninterrupted(start_command: CommandRunner) -> None:
    _kill_and_resume(start_command, [5])


@pytest.mark.long
def test_a_coordinator_is_killed_three_times(start_command: CommandRunner) -> None:
    _kill_and_resume(start_command, [1, 20, 40])
