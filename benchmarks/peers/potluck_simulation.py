"""Potluck's side of `simulation`, and the workload file that the peers start from.

potluck_simulation export NETWORK WORKLOAD
potluck_simulation run NETWORK ROUNDS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import potluck
from benchmarks.peers import peer_workload
from benchmarks.simulation.client_throughput import clients_of
from benchmarks.simulation.simulation_workload import DEVICES, peers_job

_SEED = 0


def export_workload(network: str, path: Path) -> None:
    """Write the initial model and the clients' data of the simulated job to a file."""
    model, clients, lr = clients_of(peers_job(network, 1, _SEED))
    peer_workload.save_workload(peer_workload.Workload(network, lr, model.state_dict(), clients), path)


def run(network: str, rounds: int) -> None:
    marks: list[float] = []
    job = peers_job(network, rounds + 1, _SEED)
    result = potluck.simulate(job, watch=lambda store, now: marks.append(time.perf_counter()))
    assert result.summary["updates"] == DEVICES * (rounds + 1), result.reason
    assert result.module is not None
    figures = {
        "clients_per_s": peer_workload.clients_per_second(marks, DEVICES),
        "moved": peer_workload.weight_change(result.module.state_dict(), clients_of(job)[0].state_dict()),
    }
    peer_workload.print_answer("Potluck", ["potluck", "torch"], figures)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export_workload(sys.argv[2], Path(sys.argv[3]))
    else:
        run(sys.argv[2], int(sys.argv[3]))
