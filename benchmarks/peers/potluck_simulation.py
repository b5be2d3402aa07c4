"""Potluck's side of `simulation`, and the file that the peers begin from.

potluck_simulation.py export NETWORK WORKLOAD
potluck_simulation.py run NETWORK ROUNDS
"""

from __future__ import annotations

import sys
from pathlib import Path

import workload

import potluck
from benchmarks.simulation.client_throughput import clients_of
from benchmarks.simulation.simulation_workload import DEVICES, peers_job

_SEED = 0


def export(network: str, path: Path) -> None:
    """The model to begin with and the clients' data, as the simulation of the same job has them."""
    model, clients, lr = clients_of(peers_job(network, 1, _SEED))
    workload.save(workload.Workload(network, lr, model.state_dict(), clients), path)


def run(network: str, rounds: int) -> None:
    marks: list[float] = []
    job = peers_job(network, rounds + 1, _SEED)
    result = potluck.simulate(job, watch=lambda keeper, now: marks.append(workload.now()))
    assert result.summary["updates"] == DEVICES * (rounds + 1), result.reason
    assert result.module is not None
    figures = {
        "clients_per_s": workload.pace(marks, DEVICES),
        "moved": workload.moved(result.module.state_dict(), clients_of(job)[0].state_dict()),
    }
    workload.say("Potluck", ["potluck", "torch"], figures)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(sys.argv[2], Path(sys.argv[3]))
    else:
        run(sys.argv[2], int(sys.argv[3]))
