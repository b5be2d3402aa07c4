"""`serve`, `join`, `status`, `stop`, `resume` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from potluck.run.live_addresses import free_loopback_address
from tests.cli.calling import Shell
from tests.live.command_processes import Command, CommandRunner, wait_until, write_job
from tests.live.live_scenarios import SMALL
from tests.worlds.live.fleet_folder import NOW, make_authority

TWO = {**SMALL["fleet"], "devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]}


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def _serve(start_command: CommandRunner, run: Path, rounds: int) -> Command:
    job = write_job(start_command.folder, fleet=TWO, stop={"rounds": rounds})
    return start_command("serve", job, "--listen", free_loopback_address().removeprefix("tcp/"), "--out", run)


def _join(start_command: CommandRunner, serving: Command) -> list[Command]:
    invitations = wait_until("the invitations", serving.invitations)
    return [
        start_command("join", address, "--name", name, "--token", token, "--once", "--threads", "1")
        for name, (address, token) in invitations.items()
    ]


def test_a_run_can_be_inspected_stopped_and_resumed(start_command: CommandRunner, potluck: Shell) -> None:
    run = start_command.folder / "run"
    serving = _serve(start_command, run, rounds=100_000)
    wait_until("the invitations", serving.invitations)
    waiting = potluck("status", run, "--json")
    assert (waiting.code, waiting.json["state"]) == (0, "running")
    devices = _join(start_command, serving)
    wait_until("some rounds", lambda: (potluck("status", run, "--json").json.get("round") or 0) > 3)
    result = potluck("status", run)
    assert result.code == 0
    assert "d-0: joined" in result.out
    assert "running (process" in result.out
    assert potluck("resume", run).err.count("\n") == 1, "one leads it already"
    stopped = potluck("stop", run)
    assert (stopped.code, f"potluck resume {run}" in stopped.out) == (0, True)
    assert serving.end() == 130
    assert [device.end() for device in devices] == [0, 0]
    done = json.loads((run / "summary.json").read_text())["rounds"]
    assert potluck("status", run, "--json").code == 1
    resumed = start_command("resume", run, "--set", f"stop.rounds={done + 3}", "--json")
    address = json.loads((run / "live.json").read_text())["listen"]
    token = next(iter(serving.invitations().values()))[1]
    rejoined = [
        start_command("join", address, "--name", f"d-{index}", "--token", token, "--once") for index in range(2)
    ]
    assert resumed.end() == 0, resumed.err
    assert json.loads(resumed.out)["rounds"] == done + 3
    assert [device.end() for device in rejoined] == [0, 0]


def test_ctrl_c_ends_a_run_that_waits_for_its_fleet(start_command: CommandRunner) -> None:
    serving = _serve(start_command, start_command.folder / "run", rounds=3)
    wait_until("the invitations", serving.invitations)
    wait_until("who is missing", lambda: "0 of 2 devices; waiting for d-0, d-1" in serving.err)
    os.kill(serving.pid, signal.SIGINT)
    assert serving.end(30.0) == 130


def test_ctrl_c_ends_a_device_and_the_run_goes_on_without_it(start_command: CommandRunner) -> None:
    run = start_command.folder / "run"
    serving = _serve(start_command, run, rounds=100_000)
    devices = _join(start_command, serving)
    wait_until("some rounds", lambda: any(int(path.stem) > 3 for path in run.glob("checkpoints/*.safetensors")))
    os.kill(devices[0].pid, signal.SIGINT)
    assert devices[0].end() in (0, 130)
    assert "Traceback" not in devices[0].err
    before = _newest(run)
    wait_until("more rounds", lambda: _newest(run) > before + 3)
    os.kill(serving.pid, signal.SIGINT)
    assert serving.end() == 130
    assert devices[1].end() == 0


def _newest(run: Path) -> int:
    return max(int(path.stem) for path in run.glob("checkpoints/*.safetensors"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("status", "nowhere"), "nowhere is not the folder of a live run"),
        (("status",), "no live run in runs/"),
        (("stop", "nowhere"), "nowhere is not the folder of a live run"),
        (("serve", "missing.toml"), "missing.toml"),
        (("serve", "job.toml", "--listen", "0.0.0.0:1"), "needs certificates"),
        (("serve", "job.toml", "--listen", "127.0.0.1:1:2"), "127.0.0.1:1:2"),
        (("serve", "job.toml", "--listen", "127.0.0.1:http"), "127.0.0.1:http"),
        (("lab", "job.toml", "--set", "rounds.least=x"), "rounds.least"),
        (("lab", "job.toml", "--set", "timing_only=true"), "timing_only"),
        (("join", "tls/127.0.0.1:1", "--once"), "needs a certificate"),
        (("join", "127.0.0.1:1", "--memory", "lots", "--once"), "--memory"),
        (("join", "not an address", "--token", "t", "--once"), "not an address"),
        (("join", "127.0.0.1:1"), "error: this run requires a join token; pass --token (printed by `potluck serve`)"),
        (("join",), "give either the coordinator"),
        (("join", "127.0.0.1:1", "--discover"), "give either the coordinator"),
        (("join", "127.0.0.1:1", "--listen", "192.168.1.11"), "needs a certificate"),
        (("join", "127.0.0.1:1", "--listen", "[::1]:99999"), "not a valid address"),
        (
            ("join", "127.0.0.1:1", "--certs", "certs/pi-1", "--listen", "127.0.0.3"),
            "certs issue pi-1 --host 127.0.0.3",
        ),
        (("join", "127.0.0.1:1", "--certs", "certs/pi-1", "--listen", "127.0.0.2:{taken}"), "cannot listen there"),
        (("join", "127.0.0.1:1", "--certs", "nowhere"), "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, potluck: Shell, words: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path)
    make_authority(tmp_path / "certs").issue_certificate("pi-1", ["127.0.0.2"], 30, NOW)
    with socket.socket() as busy:
        busy.bind(("127.0.0.2", 0))
        busy.listen()
        result = potluck(*(word.format(taken=busy.getsockname()[1]) for word in words))
    assert (result.code, result.out) == (2, ""), result.err
    assert reason in result.err
    assert result.err.count("\n") == 1
