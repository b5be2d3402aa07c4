"""A client of the Flower app: one SGD step on its own batch, or no training at all."""

from __future__ import annotations

from functools import cache
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from peers_app import app_settings

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content.array_records["arrays"]
    if app_settings.WORKLOAD:
        arrays = _train(int(context.node_config["partition-id"]), arrays)
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 32})})
    return Message(content=content, reply_to=message)


def _train(client: int, received: ArrayRecord) -> ArrayRecord:
    from benchmarks.peers import peer_workload

    work, model, optimizer = _load_once()
    model.load_state_dict(received.to_torch_state_dict())
    peer_workload.train_step(model, optimizer, work.clients[client])
    return ArrayRecord(model.state_dict())


@cache
def _load_once() -> tuple[Any, Any, Any]:
    """Load the workload once per process, so that the data is in memory as it is for all sides.

    A client that does not train does not import torch either, since Flower starts a process for every message.
    """
    import torch

    from benchmarks.peers import peer_workload

    torch.set_num_threads(1)
    work = peer_workload.load_workload(app_settings.WORKLOAD)
    model = work.model()
    return work, model, torch.optim.SGD(model.parameters(), lr=work.lr)
