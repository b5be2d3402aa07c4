"""Flower's SuperLink and SuperNodes on loopback; clients send back what they got.

`flower_live.py DEVICES ROUNDS [SECONDS]`.

SECONDS is how often Flower's launcher asks for work (1 by default).
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import workload
from crowd import Crowd, free_ports, listens, wait_for

_HERE = Path(__file__).resolve().parent
_BIN = Path(sys.executable).parent
_PARAMETERS = 2**18  # float32: 1 MiB


def main(devices: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        found = _measure(Path(name), devices, rounds + 1)
    assert found["replies"] == devices * (rounds + 1), f"only {found['replies']} replies came"
    ends = found["ends"]
    taken = workload.gaps(ends)
    figures = {"round_s": statistics.median(taken), "round_low_s": min(taken), "round_high_s": max(taken)}
    workload.say(f"Flower, SuperLink and {devices} SuperNodes", ["flwr", "torch"], figures)


def _measure(folder: Path, devices: int, rounds: int) -> dict[str, Any]:
    link, *nodes = free_ports(devices + 1)
    answer = folder / "answer.json"
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "peers"\n\n[superlink.peers]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    with Crowd(folder, _environment(folder, devices, rounds, answer)) as crowd:
        _start(crowd, link, nodes)
        wait_for(lambda: listens(link), "the SuperLink", 60.0)
        crowd.start("run", [f"{_BIN}/flwr", "run", str(_HERE / "flower_app"), "peers"])
        try:
            wait_for(answer.exists, "Flower's rounds", 60.0 + 20.0 * rounds)
        except SystemExit as error:
            raise SystemExit(f"{error}\n{crowd.log('run')}\n{crowd.log('superlink')[-2000:]}") from None
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def _start(crowd: Crowd, link: int, nodes: list[int]) -> None:
    """As a user starts them, but without TLS (as Potluck's lab) and without installing the app's packages anew."""
    crowd.start(
        "superlink",
        [
            f"{_BIN}/flower-superlink", "--insecure", "--port", str(link),
            "--disable-runtime-dependency-installation",
        ],
    )  # fmt: skip
    for number, port in enumerate(nodes):
        crowd.start(
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
        "PYTHONPATH": str(_HERE),
        "PEERS_WORKLOAD": "",
        "PEERS_PARAMETERS": str(_PARAMETERS),
        "PEERS_DEVICES": str(devices),
        "PEERS_ROUNDS": str(rounds),
        "PEERS_ANSWER": str(answer),
    }


if __name__ == "__main__":
    if len(sys.argv) > 3:
        os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = sys.argv[3]
    main(int(sys.argv[1]), int(sys.argv[2]))
