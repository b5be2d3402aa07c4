"""However a command ends, nothing is left behind: no process, no port, no file in shared memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.live.shells import Command, Shells, listens, ticket, until, write_job

SOON_S = 15.0  # until all that belongs to a command is gone
FOREVER = {"stop": {"rounds": 1_000_000}, "checkpoint": 5}


class _Trace:
    """What a running command has, to be looked for after its end."""

    def __init__(self, command: Command, run: Path) -> None:
        self._command = command
        self._address = str(ticket(run)["listen"])
        self._shared = command.held_in_shared_memory()
        assert listens(self._address)

    def check(self) -> None:
        until(f"processes {self._command.group()} to end", lambda: not self._command.group(), SOON_S)
        assert not listens(self._address)
        assert not [path for path in self._shared if path.exists()]


def _goes(run: Path) -> bool:
    return any(int(path.stem) > 0 for path in run.glob("checkpoints/*.safetensors"))


def _lab(shells: Shells) -> tuple[Command, _Trace]:
    run = shells.folder / "run"
    command = shells("lab", write_job(shells.folder, **FOREVER), "--out", run, forked=False)
    until("the first rounds", lambda: _goes(run))
    assert len(command.group()) >= 5, "a lab has a process for each device"
    return command, _Trace(command, run)


def test_a_lab_that_is_killed(shells: Shells) -> None:
    command, trace = _lab(shells)
    os.kill(command.pid, signal.SIGKILL)
    assert command.end() == -signal.SIGKILL
    trace.check()


@pytest.mark.long
def test_a_lab_that_is_asked_to_stop(shells: Shells) -> None:
    command, trace = _lab(shells)
    os.kill(command.pid, signal.SIGINT)
    assert command.end() == 130, command.err
    trace.check()
    assert "Traceback" not in command.err


def test_a_lab_whose_whole_group_is_interrupted_as_a_terminal_does(shells: Shells) -> None:
    command, trace = _lab(shells)
    os.killpg(command.pid, signal.SIGINT)
    assert command.end() == 130, command.err
    trace.check()
    assert "Traceback" not in command.err
    assert "potluck resume" in command.out


def test_a_lab_that_ends_by_itself(shells: Shells) -> None:
    run = shells.folder / "run"
    command = shells("lab", write_job(shells.folder, stop={"rounds": 12}), "--out", run, "--json", forked=False)
    until("the run to begin", lambda: ticket(run).get("here"))
    trace = _Trace(command, run)
    assert command.end() == 0, command.err
    trace.check()
    assert ticket(run)["ended"] == "the run is over"
