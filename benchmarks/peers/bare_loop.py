"""Federated averaging without a framework, as the baseline: `bare_loop WORKLOAD ROUNDS`."""

from __future__ import annotations

import sys
import time

import torch

from benchmarks.peers import peer_workload


def main(path: str, rounds: int) -> None:
    torch.set_num_threads(1)
    work = peer_workload.load_workload(path)
    model = work.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    current, marks = work.state, []
    for _ in range(rounds + 1):
        current = _run_round(work, model, optimizer, current)
        marks.append(time.perf_counter())
    figures = {
        "clients_per_s": peer_workload.clients_per_second(marks, len(work.clients)),
        "moved": peer_workload.weight_change(current, work.state),
    }
    peer_workload.print_answer("bare PyTorch loop", ["torch"], figures)


def _run_round(
    work: peer_workload.Workload, model: torch.nn.Module, optimizer: torch.optim.Optimizer, current: peer_workload.State
) -> peer_workload.State:
    mean = {name: torch.zeros_like(value) for name, value in current.items()}
    for client in work.clients:
        model.load_state_dict(current)
        peer_workload.train_step(model, optimizer, client)
        for name, value in model.state_dict().items():
            mean[name].add_(value, alpha=1 / len(work.clients))
    return mean


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
