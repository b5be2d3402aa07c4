"""However a command ends, nothing is left behind: no process, no port, no file in shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.live.command_processes import Command, CommandRunner, is_listening, live_status, wait_until, write_job

SOON_S = 15.0  # until everything that belongs to a command is gone
FOREVER = {"stop": {"rounds": 1_000_000}, "checkpoint": 5}


class _Trace:
    """The processes, ports and files of a running command, to be checked after its end."""

    def __init__(self, command: Command, run: Path) -> None:
        self._command = command
        self._address = str(live_status(run)["listen"])
        self._shared = command.shared_memory_files()
        assert is_listening(self._address)

    def check(self) -> None:
        wait_until(f"processes {self._command.group()} to end", lambda: not self._command.group(), SOON_S)
        assert not is_listening(self._address)
        assert not [path for path in self._shared if path.exists()]


def _is_running(run: Path) -> bool:
    return any(int(path.stem) > 0 for path in run.glob("checkpoints/*.safetensors"))


def _lab(start_command: CommandRunner) -> tuple[Command, _Trace]:
    run = start_command.folder / "run"
    command = start_command("lab", write_job(start_command.folder, **FOREVER), "--out", run, forked=False)
    wait_until("the first rounds", lambda: _is_running(run))
    assert len(command.group()) >= 5, "a lab has a process for each device"
    return command, _Trace(command, run)


def test_a_killed_lab_leaves_nothing_behind(start_command: CommandRunner) -> None:
    command, trace = _lab(start_command)
    os.kill(command.pid, signal.SIGKILL)
    assert command.end() == -signal.SIGKILL
    trace.check()


@pytest.mark.long
def test_a_stopped_lab_leaves_nothing_behind(start_command: CommandRunner) -> None:
    command, trace = _lab(start_command)
    os.kill(command.pid, signal.SIGINT)
    assert command.end() == 130, command.err
    trace.check()
    assert "Traceback" not in command.err


def test_a_lab_interrupted_from_a_terminal_leaves_nothing_behind(start_command: CommandRunner) -> None:
    command, trace = _lab(start_command)
    os.killpg(command.pid, signal.SIGINT)
    assert command.end() == 130, command.err
    trace.check()
    assert "Traceback" not in command.err
    assert "potluck resume" in command.out


def test_a_finished_lab_leaves_nothing_behind(start_command: CommandRunner) -> None:
    run = start_command.folder / "run"
    command = start_command(
        "lab", write_job(start_command.folder, stop={"rounds": 12}), "--out", run, "--json", forked=False
    )
    wait_until("the run to begin", lambda: live_status(run).get("here"))
    trace = _Trace(command, run)
    assert command.end() == 0, command.err
    trace.check()
    assert live_status(run)["ended"] == "the run is over"
