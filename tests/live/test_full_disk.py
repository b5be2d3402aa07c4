"""A live run outlives a disk that is full or gone: it warns, trains on, and writes everything once it can."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.journal.storage_warning import StorageWarning, read_warning
from potluck.model import weights_file
from potluck.run.live_addresses import free_loopback_address
from tests.cli.calling import Shell
from tests.live.command_processes import Command, CommandRunner, wait_until, write_job
from tests.live.live_scenarios import SMALL
from tests.simulation.runs import rounds
from tests.small_disk import SmallDisk, mounted_disk

TWO = {**SMALL["fleet"], "devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_disk(tmp_path / "disk", "8m") as disk:
        yield disk


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def _serve(start_command: CommandRunner, run: Path) -> Command:
    job = write_job(start_command.folder, fleet=TWO, stop={"rounds": 100_000}, rounds={"patience": "60 s"})
    address = free_loopback_address().removeprefix("tcp/")
    serving = start_command("serve", job, "--listen", address, "--out", run)
    for name, (to, token) in wait_until("the invitations", serving.invitations).items():
        start_command("join", to, "--name", name, "--token", token, "--threads", "1", "--throttle", "0.3")
    wait_until("some rounds", lambda: _newest(run) > 3)
    return serving


def _newest(run: Path) -> int:
    return max((int(path.stem) for path in run.glob("checkpoints/*.safetensors")), default=0)


def _check_it_trains_on(run: Path) -> StorageWarning:
    """The warning, after more rounds in memory than when it was first seen."""
    first: StorageWarning = wait_until("the warning", lambda: read_warning(run))
    later: StorageWarning = wait_until(
        "more rounds", lambda: (now := read_warning(run)) and now.round > first.round + 3 and now
    )
    return later


def _check_whole(run: Path) -> None:
    """The journal has every round once, in order, and its newest checkpoint can be read."""
    numbers = [span.fields["round"] for span in rounds(run)]
    assert numbers == list(range(len(numbers)))
    weights_file.read_checkpoint(weights_file.latest_checkpoint(run / "checkpoints"))
    assert not list(run.rglob("*.partial"))


def _fill_until_warned(disk: SmallDisk, run: Path) -> None:
    def is_warned() -> bool:
        disk.fill()
        return read_warning(run) is not None

    wait_until("the warning", is_warned)


def test_a_full_disk_is_a_warning_until_there_is_space(
    disk: SmallDisk, start_command: CommandRunner, shell: Shell
) -> None:
    run = disk.path / "run"
    serving = _serve(start_command, run)
    _fill_until_warned(disk, run)
    warning = _check_it_trains_on(run)
    assert warning.problem == "No space left on device"
    assert warning.held_records > 0
    assert "cannot be written (No space left on device): training continues" in serving.err
    assert f"warning: {warning.sentence()[:40]}" in shell("status", run).out
    assert "No space left" in shell("status", run, "--json").json["warning"]
    saved = _newest(run)
    disk.empty()
    wait_until("the end of the warning", lambda: "can be written again" in serving.err)
    wait_until("a newer checkpoint", lambda: _newest(run) > max(saved, warning.round))
    assert read_warning(run) is None
    assert "warning" not in shell("status", run, "--json").json
    assert shell("stop", run).code == 0
    assert serving.end() == 130, serving.err
    _check_whole(run)
    assert len(rounds(run)) > warning.round


def test_a_run_that_ends_while_its_disk_is_full_says_what_it_lost(
    disk: SmallDisk, start_command: CommandRunner
) -> None:
    run = disk.path / "run"
    serving = _serve(start_command, run)
    _fill_until_warned(disk, run)
    _check_it_trains_on(run)
    os.kill(serving.pid, signal.SIGTERM)
    assert serving.end() == 1, serving.err
    assert "Traceback" not in serving.err
    (line,) = [line for line in serving.err.splitlines() if line.startswith("error: ")]
    assert f"error: cannot write {run}: No space left on device; lost: " in line
    assert "rounds since the checkpoint of round" in line
    assert "journal records" in line
    assert line.endswith(f"then continue from the newest checkpoint with `potluck resume {run}`")
    disk.empty()
    saved = _newest(run)
    resumed = start_command("resume", run, "--set", f"stop.rounds={saved + 3}", "--json")
    assert resumed.end() == 0, resumed.err
    _check_whole(run)
    assert len(rounds(run)) == saved + 3


def test_a_vanished_folder_is_a_warning_until_it_is_back(start_command: CommandRunner, shell: Shell) -> None:
    run, gone = start_command.folder / "run", start_command.folder / "gone"
    serving = _serve(start_command, run)
    run.rename(gone)
    warning = _check_it_trains_on(run)
    assert warning.problem == "No such file or directory"
    status = shell("status", run)
    assert (status.code, f"running (process {serving.pid})" in status.out) == (0, True)
    assert not run.exists(), "a folder that is not the run's must not take its place"
    gone.rename(run)
    wait_until("the end of the warning", lambda: "can be written again" in serving.err)
    wait_until("a newer checkpoint", lambda: _newest(run) > warning.round)
    os.kill(serving.pid, signal.SIGTERM)
    assert serving.end() == 130, serving.err
    _check_whole(run)
