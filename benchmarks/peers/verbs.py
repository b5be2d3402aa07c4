"""Potluck's commands as a user gives them, and what its journal says of the rounds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from crowd import Crowd, wait_for

__all__ = ["FAST", "FLOPS", "Round", "join", "lab", "rounds", "serve"]

FAST = {"up": "1000 Gbit/s", "down": "1000 Gbit/s", "latency": 0, "overhead": 0}  # shaping that never holds anything
FLOPS = "100 TFLOP/s"  # a speed that this machine never reaches, so that nothing is slowed down

Place = Callable[[Sequence[str]], list[str]]  # the command that does it on another machine

_POTLUCK = [sys.executable, "-c", "from potluck.cli.app import main; main()"]
_TOKEN = re.compile(r"--token (\S+)")


def lab(job: Mapping[str, Any], folder: Path) -> list[float]:
    """When each round ended, in seconds of the run."""
    done = subprocess.run(_with_job("lab", job, folder), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"potluck lab failed:\n{done.stderr[-2000:]}")
    return [item.end for item in rounds(folder)]


def serve(crowd: Crowd, job: Mapping[str, Any], folder: Path, address: str, place: Place = list) -> tuple[Any, str]:
    """The process that leads, and the token that devices join with."""
    listen = ["--listen", address, "--insecure"]
    leading = crowd.start("serve", place([*_with_job("serve", job, folder), *listen]))
    wait_for(lambda: bool(_TOKEN.search(crowd.log("serve"))) or leading.poll() is not None, "potluck serve", 60)
    found = _TOKEN.search(crowd.log("serve"))
    if found is None:
        raise SystemExit(f"potluck serve failed:\n{crowd.log('serve')[-2000:]}")
    return leading, found[1]


def join(crowd: Crowd, number: int, address: str, token: str, place: Place = list) -> subprocess.Popen[bytes]:
    name = f"device-{number}"
    command = [*_POTLUCK, "join", f"tcp/{address}", "--name", name, "--token", token, "--once"]
    return crowd.start(name, place(command))


class Round(NamedTuple):
    """A round that was committed: when, by the run's own clock, and how many devices were part of it."""

    end: float
    devices: int


def rounds(folder: Path) -> list[Round]:
    """What the journal has so far; a line that is still being written is left out."""
    journal = folder / "run" / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n") and '"name":"round"' in line]
    return [Round(record["end"], len(record["fields"]["devices"])) for record in records]


def _with_job(verb: str, job: Mapping[str, Any], folder: Path) -> list[str]:
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return [*_POTLUCK, verb, str(folder / "job.toml"), "--out", str(folder / "run"), "--json"]
