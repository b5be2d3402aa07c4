"""A small network that passes for a large one: its gradients are real, its time and bytes are the other's.

The networks of a publication may be too much for a simulation; what streams, compression and waiting do to the time of
a run depends on their sizes only. Every layer takes the same multiple of operations, and of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from potluck.job import Job
from potluck.loops.costs import Costs
from potluck.model import zoo
from potluck.model.chain import Chain, trace
from potluck.model.server import Server
from potluck.model.state import State
from potluck.model.trainer import Session, Share, Trainer
from potluck.payload import Payload
from potluck.task import TaskSettings

__all__ = ["Weight", "server_kind", "trainer_kind", "weight_of"]


class Weight(NamedTuple):
    """How many times the operations and the bytes of the network that is trained."""

    flops: float = 1.0
    bytes: float = 1.0

    def on(self, costs: Costs) -> Costs:
        return Costs(
            [self.flops * flop for flop in costs.forward_flop],
            [self.flops * flop for flop in costs.backward_flop],
            [self.sent(nbytes) for nbytes in costs.pull_bytes],
            [self.sent(nbytes) for nbytes in costs.push_bytes],
            costs.flops,
        )

    def sent(self, nbytes: int) -> int:
        return round(self.bytes * nbytes)

    def wrap(self, payload: Payload) -> Payload:
        return Payload(self.sent(payload.nbytes), payload.arrays)


def weight_of(job: Job, chain: Chain) -> Weight:
    """What the network that the task names for its costs, at its natural input, takes of the one it trains."""
    if not isinstance(job.task, TaskSettings) or job.task.costs is None:
        return Weight()
    macs, params = _size(job.task.costs)
    own_macs, own_params = _sizes_of(chain)
    return Weight(macs / max(1, own_macs), params / max(1, own_params))


@cache
def _size(name: str) -> tuple[int, int]:
    with torch.device("meta"):
        return _sizes_of(trace(zoo.build(name), zoo.entry(name).shape))


def _sizes_of(chain: Chain) -> tuple[int, int]:
    """MACs of one sample, and parameters."""
    return sum(layer.macs for layer in chain.layers), sum(param.numel() for param in chain.module.parameters())


def server_kind(weight: Weight) -> type[Server]:
    """A server whose segments weigh so much."""
    if weight == Weight():
        return Server

    class Heavy(Server):
        def segment(self, state: State, part: Any, first: int, last: int) -> Payload:
            return weight.wrap(super().segment(state, part, first, last))

    return Heavy


def trainer_kind(weight: Weight) -> type[Trainer]:
    """A trainer whose updates weigh so much."""
    if weight == Weight():
        return Trainer

    class HeavySession(Session):
        def encode(self, first: int, last: int) -> Payload:
            return weight.wrap(super().encode(first, last))

    class Heavy(Trainer):
        def session(
            self, whom: Any, pieces: Mapping[int, Any], share: Share, lr: float, memory: Any, draws: Callable[..., Any]
        ) -> Session:
            return HeavySession(self, whom, pieces, share, lr, memory, draws)

    return Heavy
