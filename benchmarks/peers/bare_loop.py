"""Federated averaging without any framework: the yardstick. `bare_loop.py WORKLOAD ROUNDS`."""

from __future__ import annotations

import sys

import torch
import workload


def main(path: str, rounds: int) -> None:
    torch.set_num_threads(1)
    work = workload.load(path)
    model = work.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    current, marks = work.state, []
    for _ in range(rounds + 1):
        current = _round(work, model, optimizer, current)
        marks.append(workload.now())
    figures = {
        "clients_per_s": workload.pace(marks, len(work.clients)),
        "moved": workload.moved(current, work.state),
    }
    workload.say("bare PyTorch loop", ["torch"], figures)


def _round(
    work: workload.Workload, model: torch.nn.Module, optimizer: torch.optim.Optimizer, current: workload.State
) -> workload.State:
    mean = {name: torch.zeros_like(value) for name, value in current.items()}
    for client in work.clients:
        model.load_state_dict(current)
        workload.step(model, optimizer, client)
        for name, value in model.state_dict().items():
            mean[name].add_(value, alpha=1 / len(work.clients))
    return mean


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
