"""A pipeline behind certificates, with direct links between its devices, goes on under a standby."""

from __future__ import annotations

import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest

import potluck
from potluck.job import dump_job, make
from tests.live.command_processes import CommandRunner, wait_until
from tests.live.etcd_server import EtcdServer
from tests.live.live_scenarios import differing_tensors
from tests.live.test_standby import committed, is_in_sync
from tests.simulation.pipelines import SGD
from tests.worlds.live.fleet_folder import free_port

BATCHES = 300
HOSTS = {"pi-1": "127.0.0.2", "pi-2": "127.0.0.3"}
_JOIN = re.compile(r"potluck join (\S+) --certs (\S+) --token (\S+)")


def _make_certificates(start_command: CommandRunner) -> None:
    """One authority, copied to the standby's machine without the key that issues certificates."""
    commands: list[tuple[str, ...]] = [("certs", "init", "--host", "127.0.0.1", "--host", "127.0.0.4")]
    commands += [("certs", "issue", name, "--host", host) for name, host in HOSTS.items()]
    for words in commands:
        command = start_command(*words)
        assert command.end() == 0, command.err
    shutil.copytree(start_command.folder / "certs", start_command.folder / "copied")
    (start_command.folder / "copied" / "ca.key").unlink()


@pytest.mark.long
def test_a_pipeline_goes_on_under_the_standby(start_command: CommandRunner, etcd: EtcdServer, tmp_path: Path) -> None:
    _make_certificates(start_command)
    tables = {
        "recipe": "ftpipehd",
        "task": {
            "model": "mlp",
            "data": {"kind": "synthetic", "train": 200, "test": 20},
            "options": {"hidden": [16] * 3},
        },
        "fleet": {"devices": [{"name": name, "flops": "2 MFLOP/s"} for name in HOSTS], "lease": 5.0},
        "pipeline": {
            "batch": 8,
            "optimizer": SGD,
            "partition": {"kind": "cuts", "after": [1]},
            "patience": "60 s",
            "adaptation": {"every": 0, "on_change": False, "join": False},
        },
        "stop": {"rounds": BATCHES},
        "evaluate": 0,
        "checkpoint": 5,
    }
    job = tmp_path / "job.toml"
    job.write_text(dump_job(make(tables)))
    runs = [tmp_path / "first" / "run", tmp_path / "second" / "run"]
    election = ("--etcd", etcd.address, "--leader-lease", "2", "--json")
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.4:{free_port()}"
    leader = start_command("serve", job, "--certs", "certs", "--listen", first, "--out", runs[0], *election)
    wait_until("the invitations", lambda: len(_JOIN.findall(leader.err)) == 2)
    standby = start_command(
        "serve", job, "--standby", "--certs", "copied", "--listen", second, "--out", runs[1], *election
    )
    devices = [
        start_command("join", address, "--certs", f"certs/{name}", "--token", token, "--once", "--threads", "1",
                      "--throttle", "0.2", "--listen", f"{HOSTS[name]}:{free_port()}")
        for address, name, token in _JOIN.findall(leader.err)
    ]  # fmt: skip
    wait_until("a standby in sync", partial(is_in_sync, runs[0]))
    wait_until("some batches", lambda: committed(runs[0]) >= 10)
    os.kill(leader.pid, signal.SIGKILL)
    assert committed(runs[0]) < BATCHES, "it was over before it was killed"
    assert standby.end() == 0, standby.err
    assert [device.end() for device in devices] == [0, 0]
    potluck.simulate(tables, folder=tmp_path / "simulated")
    assert differing_tensors(runs[1], tmp_path / "simulated") == []
