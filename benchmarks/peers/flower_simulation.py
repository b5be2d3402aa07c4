"""Flower's simulation engine (Ray), one core per client: `flower_simulation WORKLOAD ROUNDS`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import peer_workload

_FOLDER = Path(__file__).resolve().parent


def main(path: str, rounds: int) -> None:
    clients = len(peer_workload.load_workload(path).clients)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        _set_environment(path, clients, rounds + 1, answer)
        _simulate(clients)
        result = json.loads(answer.read_text())
    assert result["replies"] == clients * (rounds + 1), f"only {result['replies']} replies arrived"
    figures = {"clients_per_s": peer_workload.clients_per_second(result["ends"], clients), "moved": result["moved"]}
    peer_workload.print_answer("Flower, simulation engine", ["flwr", "ray", "torch"], figures)


def _set_environment(path: str, clients: int, rounds: int, answer: Path) -> None:
    """Configure this process and the workers that Ray starts from it."""
    app = str(_FOLDER / "flower_app")
    sys.path.insert(0, app)
    os.environ |= {
        "FLWR_HOME": str(answer.parent),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": f"{app}:{_FOLDER.parents[1]}",
        "PEERS_WORKLOAD": path,
        "PEERS_DEVICES": str(clients),
        "PEERS_ROUNDS": str(rounds),
        "PEERS_ANSWER": str(answer),
    }


def _simulate(clients: int) -> None:
    """Use one core per client; with Flower's default of two there would be half as many workers."""
    from flwr.simulation import run_simulation
    from peers_app.client import app as client_app
    from peers_app.server import app as server_app

    resources: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=clients, backend_config=resources)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
