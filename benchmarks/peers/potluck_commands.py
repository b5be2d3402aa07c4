"""Runs Potluck's commands as a user would, and reads the rounds from the journal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from benchmarks.peers.process_group import ProcessGroup, wait_for

__all__ = ["FAST", "FLOPS", "CommittedRound", "read_rounds", "run_lab", "start_join", "start_serve"]

FAST = {"up": "1000 Gbit/s", "down": "1000 Gbit/s", "latency": 0, "overhead": 0}  # a link that never delays anything
FLOPS = "100 TFLOP/s"  # faster than this machine, so that nothing is slowed down

CommandWrapper = Callable[[Sequence[str]], list[str]]  # returns the command to run on another machine

_POTLUCK = [sys.executable, "-c", "from potluck.cli.app import main; main()"]
_TOKEN = re.compile(r"--token (\S+)")


def run_lab(job: Mapping[str, Any], folder: Path) -> list[float]:
    """Run `potluck lab`; return when each round ended, in seconds of the run."""
    done = subprocess.run(_command_with_job("lab", job, folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"potluck lab failed:\n{done.stderr[-2000:]}")
    return [committed.end for committed in read_rounds(folder)]


def start_serve(
    group: ProcessGroup, job: Mapping[str, Any], folder: Path, address: str, wrap: CommandWrapper = list
) -> tuple[Any, str]:
    """Start `potluck serve`; return its process and the token with which devices join."""
    listen = ["--listen", address, "--insecure"]
    coordinator = group.start("serve", wrap([*_command_with_job("serve", job, folder), *listen]))
    wait_for(
        lambda: bool(_TOKEN.search(group.read_log("serve"))) or coordinator.poll() is not None, "potluck serve", 60
    )
    token = _TOKEN.search(group.read_log("serve"))
    if token is None:
        raise SystemExit(f"potluck serve failed:\n{group.read_log('serve')[-2000:]}")
    return coordinator, token[1]


def start_join(
    group: ProcessGroup, number: int, address: str, token: str, wrap: CommandWrapper = list
) -> subprocess.Popen[bytes]:
    name = f"device-{number}"
    command = [*_POTLUCK, "join", f"tcp/{address}", "--name", name, "--token", token, "--once"]
    return group.start(name, wrap(command))


class CommittedRound(NamedTuple):
    """When a round was committed, in seconds of the run, and by how many devices."""

    end: float
    devices: int


def read_rounds(folder: Path) -> list[CommittedRound]:
    """The rounds in the journal so far, without a line that is still being written."""
    journal = folder / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n") and '"name":"round"' in line]
    return [CommittedRound(record["end"], len(record["fields"]["devices"])) for record in records]


def _command_with_job(verb: str, job: Mapping[str, Any], folder: Path) -> list[str]:
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return [*_POTLUCK, verb, str(folder / "job.toml"), "--out", str(folder / "run"), "--json"]
