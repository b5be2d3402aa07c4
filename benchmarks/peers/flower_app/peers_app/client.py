"""A client of the Flower app: one SGD step on its own batch, or nothing at all."""

from __future__ import annotations

from functools import cache
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from peers_app import wishes

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    arrays = message.content.array_records["arrays"]
    if wishes.WORKLOAD:
        arrays = _step(int(context.node_config["partition-id"]), arrays)
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 32})})
    return Message(content=content, reply_to=message)


def _step(client: int, received: ArrayRecord) -> ArrayRecord:
    import workload

    work, model, optimizer = _tools()
    model.load_state_dict(received.to_torch_state_dict())
    workload.step(model, optimizer, work.clients[client])
    return ArrayRecord(model.state_dict())


@cache
def _tools() -> tuple[Any, Any, Any]:
    """Once per process, so that Flower's clients find their data in memory as everyone else's do.

    A client that does not train does not even import torch: Flower starts a process for every message.
    """
    import torch
    import workload

    torch.set_num_threads(1)
    work = workload.load(wishes.WORKLOAD)
    model = work.model()
    return work, model, torch.optim.SGD(model.parameters(), lr=work.lr)
