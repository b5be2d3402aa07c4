"""Flower's SuperLink and SuperNodes on loopback; clients send back what they receive.

flower_live DEVICES ROUNDS [SECONDS[,SECONDS…]]

SECONDS is the interval at which Flower's launcher polls for work (1 by default); of several, the fastest counts.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_workload
from benchmarks.peers.process_group import ProcessGroup, free_ports, is_listening, wait_for

_FOLDER = Path(__file__).resolve().parent
_BIN = Path(sys.executable).parent
_PARAMETERS = 2**18  # float32: 1 MiB


def main(devices: int, rounds: int, intervals: Sequence[str]) -> None:
    figures = min((_time_rounds(devices, rounds, interval) for interval in intervals), key=lambda each: each["round_s"])
    peer_workload.print_answer(f"Flower, SuperLink and {devices} SuperNodes", ["flwr", "torch"], figures)


def _time_rounds(devices: int, rounds: int, interval: str) -> dict[str, float]:
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = interval
    with tempfile.TemporaryDirectory() as name:
        result = _measure(Path(name), devices, rounds + 1)
    assert result["replies"] == devices * (rounds + 1), f"only {result['replies']} replies arrived"
    durations = peer_workload.round_durations(result["ends"])
    return {
        "round_s": statistics.median(durations), "round_low_s": min(durations), "round_high_s": max(durations),
        "polled_every_s": float(interval),
    }  # fmt: skip


def _measure(folder: Path, devices: int, rounds: int) -> dict[str, Any]:
    link, *nodes = free_ports(devices + 1)
    answer = folder / "answer.json"
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "peers"\n\n[superlink.peers]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    with ProcessGroup(folder, _environment(folder, devices, rounds, answer)) as group:
        _start_flower(group, link, nodes)
        wait_for(lambda: is_listening(link), "the SuperLink", 60.0)
        group.start("run", [f"{_BIN}/flwr", "run", str(_FOLDER / "flower_app"), "peers"])
        try:
            wait_for(answer.exists, "Flower's rounds", 60.0 + 20.0 * rounds)
        except SystemExit as error:
            raise SystemExit(f"{error}\n{group.read_log('run')}\n{group.read_log('superlink')[-2000:]}") from None
        result: dict[str, Any] = json.loads(answer.read_text())
    return result


def _start_flower(group: ProcessGroup, link: int, nodes: list[int]) -> None:
    """Start them as a user would, but without TLS (like `potluck lab`) and without installing the app's packages."""
    group.start(
        "superlink",
        [
            f"{_BIN}/flower-superlink", "--insecure", "--port", str(link),
            "--disable-runtime-dependency-installation",
        ],
    )  # fmt: skip
    for number, port in enumerate(nodes):
        group.start(
            f"supernode-{number}",
            [
                f"{_BIN}/flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port),
                "--node-config", f"partition-id={number}",
            ],
        )  # fmt: skip


def _environment(folder: Path, devices: int, rounds: int, answer: Path) -> dict[str, str]:
    return {
        "FLWR_HOME": str(folder),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{_BIN}:{os.environ['PATH']}",  # a SuperNode looks up its own commands
        "PYTHONPATH": str(_FOLDER.parents[1]),
        "PEERS_WORKLOAD": "",
        "PEERS_PARAMETERS": str(_PARAMETERS),
        "PEERS_DEVICES": str(devices),
        "PEERS_ROUNDS": str(rounds),
        "PEERS_ANSWER": str(answer),
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",") if len(sys.argv) > 3 else ["1"])
