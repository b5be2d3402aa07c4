"""A place in the simulated network, whichever life its device is in, and bytes on their way from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from potluck.fleet import Link
from potluck.worlds.simulated.simulated_network import SimulatedChannel, SimulatedPipe, SimulatedTransfer
from potluck.worlds.simulated.simulated_node import SimulatedNode
from potluck.worlds.simulated.speed_curve import SpeedCurve

__all__ = ["SimulatedMachine", "SimulatedSendFuture"]


class SimulatedSendFuture(asyncio.Future[None]):
    """Done when the link has taken the last byte; cancelled, nothing of it arrives."""

    transfer: SimulatedTransfer | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.transfer is not None:
            self.transfer.channel.cancel_transfer(self.transfer)
            self.transfer = None
        return super().cancel(msg)


class SimulatedMachine:
    """A place in the network: one device (or the coordinator), whichever life it is in."""

    __slots__ = (
        "_make_speed_curve",
        "_speed_curve",
        "active_partitions",
        "channels",
        "down",
        "incarnation",
        "index",
        "is_up",
        "known_incarnation",
        "link",
        "loss_fractions",
        "name",
        "node",
        "partition_count",
        "up",
    )  # fmt: skip

    def __init__(self, index: int, name: str, link: Link, curve: Callable[[], SpeedCurve]) -> None:
        self.index = index
        self.name = name
        self.link = link
        self.up = SimulatedPipe(link.up)
        self.down = SimulatedPipe(link.down)
        self._make_speed_curve = curve
        self._speed_curve: SpeedCurve | None = None
        self.loss_fractions = [link.loss] if link.loss else []  # shares of messages that get lost, one for each cause
        self.channels: dict[str, tuple[SimulatedChannel, SimulatedChannel]] = {}  # out and in, by the other side
        self.active_partitions = 0  # partitions that hold now
        self.partition_count = 0  # how often it was cut off so far
        self.is_up = False
        self.incarnation = 0
        self.known_incarnation = 0  # the incarnation that the coordinator takes for present, 0 for none
        self.node: SimulatedNode | None = None

    @property
    def is_reachable(self) -> bool:
        return self.active_partitions == 0

    @property
    def speed_curve(self) -> SpeedCurve:
        """Its speed over time, made when it is first asked for: most of a large fleet never computes."""
        if self._speed_curve is None:
            self._speed_curve = self._make_speed_curve()
        return self._speed_curve
