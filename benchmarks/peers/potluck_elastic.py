"""Potluck's side of `elastic`: from kill −9 of a device to the next round that is committed.

potluck_elastic.py DEVICES KILLS
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import verbs
import workload
from crowd import Crowd, free_ports, wait_for

_ROUNDS = 10**6  # more than there will be: the run is ended when enough have died
_PAUSE_S = 1.0  # before the next one dies


def main(devices: int, kills: int) -> None:
    with tempfile.TemporaryDirectory() as name, Crowd(Path(name), {"OMP_NUM_THREADS": "1"}) as crowd:
        taken = _measure(crowd, Path(name), devices, kills)
    figures = {"recovery_s": statistics.median(taken), "low_s": min(taken), "high_s": max(taken)}
    workload.say(f"Potluck, {devices} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def _measure(crowd: Crowd, folder: Path, devices: int, kills: int) -> list[float]:
    """One device after the other dies, and none comes back; the last is left alone."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    _, token = verbs.serve(crowd, job(devices), folder, address)
    here = [verbs.join(crowd, number, address, token) for number in range(devices)]
    wait_for(lambda: _least(folder, 0) == devices, "a round with every device", 120.0)
    taken = []
    for victim in range(min(kills, devices - 1)):
        time.sleep(_PAUSE_S)
        taken.append(_kill(here[victim].pid, folder, devices - victim - 1))
    return taken


def _kill(victim: int, folder: Path, left: int) -> float:
    """Until a round is committed without the victim: one that it had finished already is no recovery."""
    before = len(verbs.rounds(folder))
    began = time.monotonic()
    os.killpg(victim, signal.SIGKILL)
    wait_for(lambda: _least(folder, before) <= left, "a round without the victim", 120.0)
    return time.monotonic() - began


def _least(folder: Path, since: int) -> float:
    """How many devices were part of the smallest round since then."""
    return min((item.devices for item in verbs.rounds(folder)[since:]), default=float("inf"))


def job(devices: int) -> dict[str, Any]:
    """The MLP of `simulation`, one gradient of a batch of 32 per device and round."""
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices * 32, "test": 32}
    return {
        "recipe": "sync-sgd",
        "evaluate": 0,
        "checkpoint": 1,
        "task": {"model": "mlp", "options": {"hidden": [32]}, "data": data},
        "rounds": {"batching": {"kind": "fixed", "size": 32}},
        "stop": {"rounds": _ROUNDS},
        "fleet": {"devices": [{"name": "device", "count": devices, "flops": verbs.FLOPS, "link": verbs.FAST}]},
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
