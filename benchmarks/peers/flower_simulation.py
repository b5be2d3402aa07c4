"""Flower's simulation engine (Ray), one core per client. `flower_simulation.py WORKLOAD ROUNDS`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import workload

_HERE = Path(__file__).resolve().parent


def main(path: str, rounds: int) -> None:
    clients = len(workload.load(path).clients)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        _prepare(path, clients, rounds + 1, answer)
        _simulate(clients)
        found = json.loads(answer.read_text())
    assert found["replies"] == clients * (rounds + 1), f"only {found['replies']} replies came"
    figures = {"clients_per_s": workload.pace(found["ends"], clients), "moved": found["moved"]}
    workload.say("Flower, simulation engine", ["flwr", "ray", "torch"], figures)


def _prepare(path: str, clients: int, rounds: int, answer: Path) -> None:
    """For this process and for the workers that Ray starts from it."""
    app = str(_HERE / "flower_app")
    sys.path.insert(0, app)
    os.environ |= {
        "FLWR_HOME": str(answer.parent),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": f"{app}:{_HERE}",
        "PEERS_WORKLOAD": path,
        "PEERS_DEVICES": str(clients),
        "PEERS_ROUNDS": str(rounds),
        "PEERS_ANSWER": str(answer),
    }


def _simulate(clients: int) -> None:
    """As many workers as there are cores: with Flower's default of two cores per client there would be half of them."""
    from flwr.simulation import run_simulation
    from peers_app.client import app as client_app
    from peers_app.server import app as server_app

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=resources)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
