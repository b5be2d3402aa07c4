"""A machine of the simulated network: what outlives the incarnations of its device, and its sends in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from potluck.fleet import Link
from potluck.fleet.speed_curve import SpeedCurve
from potluck.worlds.simulated.simulated_network import SimulatedChannel, SimulatedPipe, SimulatedTransfer
from potluck.worlds.simulated.simulated_node import SimulatedNode

__all__ = ["SimulatedMachine", "SimulatedSendFuture"]


class SimulatedSendFuture(asyncio.Future[None]):
    """Done when the link has taken the last byte. Cancelling it drops the message."""

    transfer: SimulatedTransfer | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.transfer is not None:
            self.transfer.channel.cancel_transfer(self.transfer)
            self.transfer = None
        return super().cancel(msg)


class SimulatedMachine:
    """A device's machine or the coordinator's: link, speed, faults in effect, and the current incarnation."""

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

    def __init__(self, index: int, name: str, link: Link, make_speed_curve: Callable[[], SpeedCurve]) -> None:
        self.index = index
        self.name = name
        self.link = link
        self.up = SimulatedPipe(link.up)
        self.down = SimulatedPipe(link.down)
        self._make_speed_curve = make_speed_curve
        self._speed_curve: SpeedCurve | None = None
        self.loss_fractions = [link.loss] if link.loss else []  # fractions of messages lost, one per cause
        self.channels: dict[str, tuple[SimulatedChannel, SimulatedChannel]] = {}  # peer → outgoing, incoming
        self.active_partitions = 0  # faults that cut its link at present
        self.partition_count = 0  # times its link was cut so far
        self.is_up = False
        self.incarnation = 0
        self.known_incarnation = 0  # the incarnation that the coordinator considers connected, 0 for none
        self.node: SimulatedNode | None = None

    @property
    def is_reachable(self) -> bool:
        return self.active_partitions == 0

    @property
    def speed_curve(self) -> SpeedCurve:
        """Its speed over time, built on first use: most devices of a large fleet never compute."""
        if self._speed_curve is None:
            self._speed_curve = self._make_speed_curve()
        return self._speed_curve
