"""The server of the Flower app: federated averaging over all nodes, and the time of each round."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import workload
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from peers_app import wishes

app = ServerApp()


class Timed(FedAvg):
    """FedAvg that remembers when each round was merged."""

    def __init__(self, devices: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=devices, min_available_nodes=devices)
        self.ends: list[float] = []
        self.replies = 0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        self.replies += sum(not answer.has_error() for answer in answers)
        merged = super().aggregate_train(server_round, answers)
        self.ends.append(workload.now())
        return merged


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = _first_state()
    strategy = Timed(wishes.DEVICES)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=wishes.ROUNDS)
    found = {
        "ends": strategy.ends,
        "replies": strategy.replies,
        "moved": workload.moved(result.arrays.to_torch_state_dict(), start),
    }
    Path(wishes.ANSWER).write_text(json.dumps(found))


def _first_state() -> dict[str, torch.Tensor]:
    if wishes.WORKLOAD:
        return workload.load(wishes.WORKLOAD).state
    return {"weights": torch.zeros(wishes.PARAMETERS)}
