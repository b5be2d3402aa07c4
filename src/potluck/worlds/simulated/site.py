"""A place in the simulated network, whichever life its device is in, and bytes on their way from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from potluck.fleet import Link
from potluck.worlds.simulated.network import Channel, Pipe, Transfer
from potluck.worlds.simulated.node import SimulatedNode
from potluck.worlds.simulated.speed import Curve

__all__ = ["Sending", "Site"]


class Sending(asyncio.Future[None]):
    """Done when the link has taken the last byte; cancelled, nothing of it arrives."""

    transfer: Transfer | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done() and self.transfer is not None:
            self.transfer.channel.cancel(self.transfer)
            self.transfer = None
        return super().cancel(msg)


class Site:
    """A place in the network: one device (or the coordinator), whichever life it is in."""

    __slots__ = (
        "_curve", "_make_curve", "channels", "cut", "cuts", "down", "here", "incarnation", "index", "known", "link",
        "lose", "name", "node", "up",
    )  # fmt: skip

    def __init__(self, index: int, name: str, link: Link, curve: Callable[[], Curve]) -> None:
        self.index = index
        self.name = name
        self.link = link
        self.up = Pipe(link.up)
        self.down = Pipe(link.down)
        self._make_curve = curve
        self._curve: Curve | None = None
        self.lose = [link.loss] if link.loss else []  # shares of messages that get lost, one for each cause
        self.channels: dict[str, tuple[Channel, Channel]] = {}  # out and in, by the other side
        self.cuts = 0  # partitions that hold now
        self.cut = 0  # how often it was cut off so far
        self.here = False
        self.incarnation = 0
        self.known = 0  # the incarnation that the coordinator takes for present, 0 for none
        self.node: SimulatedNode | None = None

    @property
    def reachable(self) -> bool:
        return self.cuts == 0

    @property
    def curve(self) -> Curve:
        """Its speed over time, made when it is first asked for: most of a large fleet never computes."""
        if self._curve is None:
            self._curve = self._make_curve()
        return self._curve
