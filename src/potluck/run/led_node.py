"""The coordinator's node in a live run: notices requests to stop, and waits for standbys before it goes on."""

from __future__ import annotations

from potluck.loops.node import Envelope, Node
from potluck.run.standby_replication import StandbyReplication

__all__ = ["InterruptibleNode", "ReplicatedNode"]

_CHECK_STOP_EVERY_S = 0.25


class InterruptibleNode:
    """A node that wakes up regularly while it waits for messages, so that a request to stop is noticed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.name = node.name
        self.incarnation = node.incarnation
        self.now, self.sleep, self.send, self.compute = node.now, node.sleep, node.send, node.compute
        self.speed, self.rng, self.record = node.speed, node.rng, node.record

    async def receive(self, until: float | None = None) -> Envelope | None:
        next_check = self.now() + _CHECK_STOP_EVERY_S
        return await self._node.receive(next_check if until is None else min(until, next_check))


class ReplicatedNode(InterruptibleNode):
    """Takes the next message only when the standbys have what was committed before."""

    def __init__(self, node: Node, replication: StandbyReplication) -> None:
        super().__init__(node)
        self._replication = replication

    async def receive(self, until: float | None = None) -> Envelope | None:
        await self._replication.wait_for_standbys()
        return await super().receive(until)
