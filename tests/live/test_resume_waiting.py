"""How long a resumed live run waits for its devices."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

from potluck.run.live_addresses import free_loopback_address
from tests.live.command_processes import Command, CommandRunner, wait_until, write_job
from tests.live.live_scenarios import SMALL

THREE = {**SMALL["fleet"], "devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}]}


def _newest(run: Path) -> int:
    return max((int(path.stem) for path in run.glob("checkpoints/*.safetensors")), default=0)


def _kill(command: Command) -> None:
    os.kill(command.pid, signal.SIGKILL)
    command.end()


def test_a_run_goes_on_with_the_devices_that_are_left(start_command: CommandRunner) -> None:
    run, address = start_command.folder / "run", free_loopback_address().removeprefix("tcp/")
    job = write_job(start_command.folder, fleet=THREE, stop={"rounds": 100_000})
    serving = start_command("serve", job, "--listen", address, "--token-each", "--out", run)
    invitations = wait_until("the invitations", serving.invitations)
    assert len({token for _, token in invitations.values()}) == 3
    devices = [
        start_command("join", to, "--name", name, "--token", token, "--threads", "1")
        for name, (to, token) in invitations.items()
    ]
    wait_until("some rounds", lambda: _newest(run) > 3)
    for command in (serving, *devices[1:]):
        _kill(command)
    saved, began = _newest(run), time.monotonic()
    resumed = start_command("resume", run)
    wait_until("the next round", lambda: _newest(run) > saved)
    assert time.monotonic() - began < 45.0, "it waited for devices that are gone"  # 60 s once; 4 s when idle
    assert re.search(r"the run starts without d-1, d-2: not connected after \d", resumed.err)
    assert len({token for _, token in resumed.invitations().values()}) == 3, "--token-each is kept"
    os.kill(resumed.pid, signal.SIGINT)
    assert resumed.end() == 130


def test_a_run_waits_for_the_least_devices_as_long_as_it_is_told(start_command: CommandRunner) -> None:
    run, address = start_command.folder / "run", free_loopback_address().removeprefix("tcp/")
    job = write_job(start_command.folder, fleet=THREE, rounds={"least": 2, "patience": "60 s"})
    serving = start_command("serve", job, "--listen", address, "--wait", "0", "--out", run)
    wait_until("the start", lambda: "the run starts without d-0, d-1, d-2" in serving.err)
    wait_until("a checkpoint", lambda: (run / "checkpoints").exists() and any((run / "checkpoints").iterdir()))
    _kill(serving)
    resumed = start_command("resume", run, "--wait", "3")
    wait_until("the end of the wait", lambda: "not connected after 3" in resumed.err)
    os.kill(resumed.pid, signal.SIGINT)
    assert resumed.end() == 130
