"""Certificates, `serve` and `join` as in docs/deployment.md: the real commands, on one machine."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from statistics import median

import pytest

from potluck.job import dump_job, make
from potluck.journal import Span, read_journal
from tests.live.command_processes import Command, CommandRunner, wait_until, write_job
from tests.live.live_scenarios import LEASE
from tests.simulation.pipelines import SGD
from tests.worlds.live.fleet_folder import free_port

HOSTS = {"pi-1": "127.0.0.2", "pi-2": "127.0.0.3"}
FLEET = {"devices": [{"name": name, "flops": "20 MFLOP/s"} for name in HOSTS], "lease": LEASE}
_JOIN = re.compile(r"potluck join (\S+) --certs (\S+) --token (\S+)")


def _done(start_command: CommandRunner, *words: str | Path) -> Command:
    command = start_command(*words)
    assert command.end() == 0, command.err
    return command


@pytest.fixture
def certs(start_command: CommandRunner) -> Path:
    """A folder with bundles for the fleet and for a device that is not in it."""
    _done(start_command, "certs", "init", "--host", "127.0.0.1")
    for name, host in {**HOSTS, "pi-9": "127.0.0.9"}.items():
        _done(start_command, "certs", "issue", name, "--host", host)
    return start_command.folder / "certs"


def _invitations(serving: Command) -> dict[str, tuple[str, str]]:
    """The address and the token of each device."""
    invitations = wait_until(
        "the invitations", lambda: len(_JOIN.findall(serving.err)) == 2 and _JOIN.findall(serving.err)
    )
    return {name: (address, token) for address, name, token in invitations}


def _serve(start_command: CommandRunner, job: Path, *words: str) -> Command:
    return start_command(
        "serve", job, "--certs", "certs", "--listen", f"127.0.0.1:{free_port()}", "--out", "run", "--json", *words
    )


def test_a_pipeline_behind_certificates_whose_devices_are_linked_directly(
    start_command: CommandRunner, certs: Path
) -> None:
    data = {"kind": "synthetic", "train": 200, "test": 20}
    pipeline = {"batch": 8, "optimizer": SGD, "partition": {"kind": "cuts", "after": [1]}, "patience": "60 s"}
    task = {"model": "mlp", "data": data, "options": {"hidden": [16] * 3}}
    tables = {"recipe": "ftpipehd", "task": task, "fleet": FLEET, "stop": {"rounds": 100_000}, "evaluate": 0}
    job = start_command.folder / "job.toml"
    job.write_text(dump_job(make({**tables, "pipeline": pipeline, "checkpoint": 1})))
    serving = _serve(start_command, job, "--token-each")
    invitations = _invitations(serving)
    ports = {name: free_port() for name in HOSTS}
    devices = [
        start_command(
            "join", address, "--certs", certs / name, "--token", token, "--once", "--threads", "1",
            "--listen", f"{HOSTS[name]}:{ports[name]}",
        )
        for name, (address, token) in invitations.items()
    ]  # fmt: skip
    wait_until("some batches", lambda: _newest(start_command.folder / "run") > 3)
    assert _is_connected(HOSTS["pi-1"], ports["pi-1"]) or _is_connected(HOSTS["pi-2"], ports["pi-2"])
    os.kill(serving.pid, signal.SIGINT)
    assert serving.end() == 130, serving.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]


def test_refused_devices_are_named_on_stderr(start_command: CommandRunner, certs: Path) -> None:
    """One uses another device's token, the other has a certificate but is not in the fleet."""
    serving = _serve(start_command, write_job(start_command.folder, fleet=FLEET), "--token-each")
    invitations = _invitations(serving)
    address, token = invitations["pi-1"]
    impostor = start_command("join", address, "--certs", certs / "pi-2", "--token", token, "--once")
    assert impostor.end() == 2
    assert "pi-2 was refused: the token is for pi-1 and not for pi-2" in impostor.err
    stranger = start_command("join", address, "--certs", certs / "pi-9", "--token", token)
    wait_until("the reason", lambda: "pi-9 is not in this run's fleet (pi-1, pi-2)" in stranger.err)
    when, where = r"\d\d:\d\d:\d\d", r"127\.0\.0\.1:\d+"
    why = "the token is for pi-1 and not for pi-2"
    wait_until("the log", lambda: re.search(f"{when} refused pi-2 at {where}: {why}", serving.err))
    why = r"its certificate \(pi-9\) names no device of this run's fleet"
    wait_until("the log", lambda: re.search(f"{when} refused pi-9 at {where}: {why}", serving.err))


def test_devices_join_with_the_printed_command_of_a_coordinator_that_listens_everywhere(
    start_command: CommandRunner, certs: Path
) -> None:
    """The certificate carries only loopback addresses, so the machine's own address would be refused."""
    job = write_job(start_command.folder, fleet=FLEET, stop={"rounds": 2})
    serving = start_command(
        "serve", job, "--certs", "certs", "--listen", f"0.0.0.0:{free_port()}", "--out", "run", "--json"
    )
    devices = [
        start_command("join", address, "--certs", certs / name, "--token", token, "--once", "--threads", "1")
        for name, (address, token) in _invitations(serving).items()
    ]
    assert serving.end() == 0, serving.err
    assert json.loads(serving.out)["rounds"] == 2
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]
    assert "only processes of this machine can join" in serving.err


def test_a_throttled_device_takes_longer(start_command: CommandRunner, certs: Path) -> None:
    task = {
        "model": "mlp", "data": {"kind": "synthetic", "train": 2000, "test": 50}, "options": {"hidden": [256, 256]},
    }  # fmt: skip
    serving = _serve(start_command, write_job(start_command.folder, task=task, fleet=FLEET, stop={"rounds": 4}))
    throttle = {"pi-1": "0.1", "pi-2": "1"}
    devices = [
        start_command(
            "join", address, "--certs", certs / name, "--token", token, "--once", "--threads", "1",
            "--throttle", throttle[name],
        )
        for name, (address, token) in _invitations(serving).items()
    ]  # fmt: skip
    assert serving.end() == 0, serving.err
    assert json.loads(serving.out)["rounds"] == 4
    assert [device.end() for device in devices] == [0, 0]
    took = {name: _compute_s(start_command.folder / "run", name) for name in HOSTS}
    assert took["pi-1"] > 4 * took["pi-2"], took


def _compute_s(run: Path, name: str) -> float:
    """Seconds that a device computes in a round."""
    spans = [record for record in read_journal(run / "journal.jsonl") if isinstance(record, Span)]
    return median(record.end - record.start for record in spans if (record.node, record.name) == (name, "compute"))


def _newest(run: Path) -> int:
    return max((int(path.stem) for path in run.glob("checkpoints/*.safetensors")), default=0)


def _is_connected(host: str, port: int) -> bool:
    """Whether any process has a connection to this address."""
    packed = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any((line[1], line[3]) == (f"{packed}:{port:04X}", "01") for line in lines)
