"""Certificates, `serve` and `join` as docs/deployment.md has them: real commands, here on one machine."""

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
from tests.live.running import LEASE
from tests.live.shells import Command, Shells, until, write_job
from tests.simulation.pipelines import SGD
from tests.worlds.live.fleet_folder import free_port

HOSTS = {"pi-1": "127.0.0.2", "pi-2": "127.0.0.3"}
FLEET = {"devices": [{"name": name, "flops": "20 MFLOP/s"} for name in HOSTS], "lease": LEASE}
_JOIN = re.compile(r"potluck join (\S+) --certs (\S+) --token (\S+)")


def _done(shells: Shells, *words: str | Path) -> Command:
    command = shells(*words)
    assert command.end() == 0, command.err
    return command


@pytest.fixture
def certs(shells: Shells) -> Path:
    """A folder with bundles for the fleet and for one who is not in it."""
    _done(shells, "certs", "init", "--host", "127.0.0.1")
    for name, host in {**HOSTS, "pi-9": "127.0.0.9"}.items():
        _done(shells, "certs", "issue", name, "--host", host)
    return shells.folder / "certs"


def _invitations(serving: Command) -> dict[str, tuple[str, str]]:
    """The address and the token that each device gets."""
    invitations = until("the invitations", lambda: len(_JOIN.findall(serving.err)) == 2 and _JOIN.findall(serving.err))
    return {name: (address, token) for address, name, token in invitations}


def _serve(shells: Shells, job: Path, *words: str) -> Command:
    return shells(
        "serve", job, "--certs", "certs", "--listen", f"127.0.0.1:{free_port()}", "--out", "run", "--json", *words
    )


def test_a_pipeline_behind_certificates_whose_devices_are_linked_directly(shells: Shells, certs: Path) -> None:
    data = {"kind": "synthetic", "train": 200, "test": 20}
    pipeline = {"batch": 8, "optimizer": SGD, "partition": {"kind": "cuts", "after": [1]}, "patience": "60 s"}
    task = {"model": "mlp", "data": data, "options": {"hidden": [16] * 3}}
    tables = {"recipe": "ftpipehd", "task": task, "fleet": FLEET, "stop": {"rounds": 100_000}, "evaluate": 0}
    job = shells.folder / "job.toml"
    job.write_text(dump_job(make({**tables, "pipeline": pipeline, "checkpoint": 1})))
    serving = _serve(shells, job, "--token-each")
    invitations = _invitations(serving)
    ports = {name: free_port() for name in HOSTS}
    devices = [
        shells(
            "join", address, "--certs", certs / name, "--token", token, "--once", "--threads", "1",
            "--listen", f"{HOSTS[name]}:{ports[name]}",
        )
        for name, (address, token) in invitations.items()
    ]  # fmt: skip
    until("some batches", lambda: _newest(shells.folder / "run") > 3)
    assert _linked(HOSTS["pi-1"], ports["pi-1"]) or _linked(HOSTS["pi-2"], ports["pi-2"])
    os.kill(serving.pid, signal.SIGINT)
    assert serving.end() == 130, serving.err
    assert [device.end() for device in devices] == [0, 0], [device.err for device in devices]


def test_who_is_turned_away_is_named_on_stderr(shells: Shells, certs: Path) -> None:
    """Another's token, and a certificate of nobody in the fleet."""
    serving = _serve(shells, write_job(shells.folder, fleet=FLEET), "--token-each")
    invitations = _invitations(serving)
    address, token = invitations["pi-1"]
    impostor = shells("join", address, "--certs", certs / "pi-2", "--token", token, "--once")
    assert impostor.end() == 2
    assert "pi-2 was refused: the token is for pi-1 and not for pi-2" in impostor.err
    stranger = shells("join", address, "--certs", certs / "pi-9", "--token", token)
    until("the reason", lambda: "pi-9 is not in this run's fleet (pi-1, pi-2)" in stranger.err)
    when, where = r"\d\d:\d\d:\d\d", r"127\.0\.0\.1:\d+"
    why = "the token is for pi-1 and not for pi-2"
    until("the log", lambda: re.search(f"{when} refused pi-2 at {where}: {why}", serving.err))
    why = r"its certificate \(pi-9\) names no device of this run's fleet"
    until("the log", lambda: re.search(f"{when} refused pi-9 at {where}: {why}", serving.err))


def test_a_throttled_device_takes_longer(shells: Shells, certs: Path) -> None:
    task = {
        "model": "mlp", "data": {"kind": "synthetic", "train": 2000, "test": 50}, "options": {"hidden": [256, 256]},
    }  # fmt: skip
    serving = _serve(shells, write_job(shells.folder, task=task, fleet=FLEET, stop={"rounds": 4}))
    throttle = {"pi-1": "0.1", "pi-2": "1"}
    devices = [
        shells(
            "join", address, "--certs", certs / name, "--token", token, "--once", "--threads", "1",
            "--throttle", throttle[name],
        )
        for name, (address, token) in _invitations(serving).items()
    ]  # fmt: skip
    assert serving.end() == 0, serving.err
    assert json.loads(serving.out)["rounds"] == 4
    assert [device.end() for device in devices] == [0, 0]
    took = {name: _computing(shells.folder / "run", name) for name in HOSTS}
    assert took["pi-1"] > 4 * took["pi-2"], took


def _computing(run: Path, name: str) -> float:
    """How long a device computes for a round."""
    spans = [one for one in read_journal(run / "journal.jsonl") if isinstance(one, Span)]
    return median(one.end - one.start for one in spans if (one.node, one.name) == (name, "compute"))


def _newest(run: Path) -> int:
    return max((int(path.stem) for path in run.glob("checkpoints/*.safetensors")), default=0)


def _linked(host: str, port: int) -> bool:
    """Whether anybody has a connection to this address."""
    packed = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any((line[1], line[3]) == (f"{packed}:{port:04X}", "01") for line in lines)
