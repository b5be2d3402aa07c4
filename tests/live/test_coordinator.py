"""kill -9 of the coordinator, and `potluck resume`: devices come back by themselves, nothing committed is lost."""

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
from tests.live.running import LIMIT_S, SMALL, check_books, differing
from tests.live.shells import Command, Shells, until, write_job

ROUNDS = 60


@contextmanager
def joined(serving: Command) -> Iterator[None]:
    """Everyone whom `serve` invites, each in a process of its own that looks for the coordinator until the run ends."""
    context = multiprocessing.get_context("forkserver")
    invitations = until("the invitations", serving.invitations)
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


def _kill_and_resume(shells: Shells, versions: list[int]) -> None:
    """Kill whoever leads when so many rounds are committed, again and again; then compare with a run left in peace."""
    folder = shells.folder
    settings = {"recipe": "sync-sgd", "stop": {"rounds": ROUNDS}}
    job, run = write_job(folder, **settings), folder / "run"
    address = free_loopback_address().removeprefix("tcp/")
    leading = shells("serve", job, "--listen", address, "--out", run, "--json")
    with joined(leading):
        for version in versions:
            until(f"version {version}", partial(_has_reached, run, version))
            os.kill(leading.pid, signal.SIGKILL)
            leading.end()
            committed = _committed(run)
            assert committed < ROUNDS, "it was over before it was killed"
            leading = shells("resume", run, "--json")
        assert leading.end() == 0, leading.err
    summary = json.loads(leading.out)
    check_books(run, Result(summary["status"], summary["reason"], summary, run, None), ROUNDS)
    potluck.simulate({**SMALL, **settings}, folder=folder / "simulated")
    assert differing(run, folder / "simulated") == []


def test_a_killed_coordinator_is_resumed_and_the_run_ends_as_if_nothing_had_been(shells: Shells) -> None:
    _kill_and_resume(shells, [5])


@pytest.mark.long
def test_a_coordinator_is_killed_three_times(shells: Shells) -> None:
    _kill_and_resume(shells, [1, 20, 40])
