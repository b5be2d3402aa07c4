"""The server of the Flower app: federated averaging over all nodes, and the end of each round."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.peers import peer_workload
from peers_app import app_settings

app = ServerApp()


class TimedFedAvg(FedAvg):
    """FedAvg that records when each round was merged."""

    def __init__(self, devices: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=devices, min_available_nodes=devices)
        self.ends: list[float] = []
        self.replies = 0

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        answers = list(replies)
        self.replies += sum(not answer.has_error() for answer in answers)
        merged: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, answers)
        self.ends.append(time.perf_counter())
        return merged


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = _initial_state()
    strategy = TimedFedAvg(app_settings.DEVICES)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=app_settings.ROUNDS)
    answer = {
        "ends": strategy.ends,
        "replies": strategy.replies,
        "moved": peer_workload.weight_change(result.arrays.to_torch_state_dict(), start),
    }
    Path(app_settings.ANSWER).write_text(json.dumps(answer))


def _initial_state() -> dict[str, torch.Tensor]:
    if app_settings.WORKLOAD:
        return peer_workload.load_workload(app_settings.WORKLOAD).state
    return {"weights": torch.zeros(app_settings.PARAMETERS)}
