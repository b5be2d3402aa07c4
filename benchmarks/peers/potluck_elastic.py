"""Potluck's side of `elastic`: from the kill −9 of a device to the next committed round.

potluck_elastic DEVICES KILLS
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

from benchmarks.peers import peer_workload, potluck_commands
from benchmarks.peers.process_group import ProcessGroup, free_ports, wait_for

_ROUNDS = 10**6  # never reached: the run is stopped after the last kill
_PAUSE_S = 1.0  # before the next kill


def main(devices: int, kills: int) -> None:
    with tempfile.TemporaryDirectory() as name, ProcessGroup(Path(name), {"OMP_NUM_THREADS": "1"}) as group:
        durations = _measure(group, Path(name), devices, kills)
    figures = {"recovery_s": statistics.median(durations), "low_s": min(durations), "high_s": max(durations)}
    peer_workload.print_answer(f"Potluck, {devices} devices", ["potluck", "torch", "eclipse-zenoh"], figures)


def _measure(group: ProcessGroup, folder: Path, devices: int, kills: int) -> list[float]:
    """Kill one device after the other, but never the last; none is restarted."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    _, token = potluck_commands.start_serve(group, elastic_job(devices), folder, address)
    devices_joined = [potluck_commands.start_join(group, number, address, token) for number in range(devices)]
    wait_for(lambda: _fewest_devices(folder, 0) == devices, "a round with every device", 120.0)
    durations = []
    for victim in range(min(kills, devices - 1)):
        time.sleep(_PAUSE_S)
        durations.append(_time_recovery(devices_joined[victim].pid, folder, devices - victim - 1))
    return durations


def _time_recovery(victim: int, folder: Path, remaining: int) -> float:
    """Seconds until a round is committed without the victim; a round that still includes it does not count."""
    before = len(potluck_commands.read_rounds(folder))
    start = time.monotonic()
    os.killpg(victim, signal.SIGKILL)
    wait_for(lambda: _fewest_devices(folder, before) <= remaining, "a round without the victim", 120.0)
    return time.monotonic() - start


def _fewest_devices(folder: Path, since: int) -> float:
    """The number of devices in the smallest round since then."""
    return min((committed.devices for committed in potluck_commands.read_rounds(folder)[since:]), default=float("inf"))


def elastic_job(devices: int) -> dict[str, Any]:
    """The MLP of `simulation`, one gradient of a batch of 32 per device and round."""
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices * 32, "test": 32}
    return {
        "recipe": "sync-sgd",
        "evaluate": 0,
        "checkpoint": 1,
        "task": {"model": "mlp", "options": {"hidden": [32]}, "data": data},
        "rounds": {"batching": {"kind": "fixed", "size": 32}},
        "stop": {"rounds": _ROUNDS},
        "fleet": {
            "devices": [
                {"name": "device", "count": devices, "flops": potluck_commands.FLOPS, "link": potluck_commands.FAST}
            ]
        },
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
