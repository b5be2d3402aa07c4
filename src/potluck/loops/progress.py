"""What the coordinator keeps in mind: the turns under way, and the books of the run that a checkpoint saves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec

from potluck.loops.messages import Invite, Push
from potluck.payload import Payload

__all__ = ["Books", "Ending", "Turn"]


class Ending(NamedTuple):
    """How a run ended: "done", "failed" or "interrupted", and why."""

    status: str
    reason: str


class Piece(NamedTuple):
    """The update of the layers `first` to `last`."""

    first: int
    last: int
    payload: Payload


class Turn:
    """One invitation of one device, until its update is whole or it is out."""

    __slots__ = (
        "_pieces", "began", "device", "heard", "incarnation", "invite", "loss", "nudge_at", "number", "part", "pause",
        "samples", "sending", "state", "version",
    )  # fmt: skip

    def __init__(
        self, invite: Invite, device: str, incarnation: int, version: int, began: float, state: Any, part: Any
    ) -> None:
        self.invite = invite
        self.number = invite.turn
        self.device = device
        self.incarnation = incarnation
        self.version = version  # of the model it starts from, which is `state`
        self.state = state
        self.part = part  # of the model, that this turn is about
        self.began = began
        self.heard = False
        self.pause = 0.0
        self.nudge_at = 0.0
        self.samples = 0
        self.loss = 0.0
        self.sending: dict[int, asyncio.Future[None]] = {}
        self._pieces: dict[int, Piece] = {}

    @property
    def pieces(self) -> list[Piece]:
        return list(self._pieces.values())

    def take(self, push: Push) -> None:
        """Keep a segment of the update; the same one again changes nothing."""
        self._pieces.setdefault(push.first, Piece(push.first, push.last, push.payload))
        self.samples, self.loss = push.samples, push.loss

    def misplaced(self, push: Push, layers: int) -> str | None:
        """Why a segment has no place in the update: there are no such layers, or some of them came in another one."""
        first, last = push.first, push.last
        if not 0 <= first <= last < layers:
            return f"it sent layers {first} to {last} of a model with {layers}"
        for piece in self._pieces.values():
            if first <= piece.last and piece.first <= last and (first, last) != (piece.first, piece.last):
                return f"it sent layers {first} to {last} after {piece.first} to {piece.last}, which overlap"
        return None

    def covers(self, layer: int) -> bool:
        """Whether the update of a layer has come."""
        return any(piece.first <= layer <= piece.last for piece in self._pieces.values())

    def is_whole(self, layers: int) -> bool:
        covered = sum(piece.last - piece.first + 1 for piece in self._pieces.values())
        return covered == layers

    def send(self, first: int, sending: Awaitable[None]) -> None:
        if isinstance(sending, asyncio.Future):
            self.sending[first] = sending

    def cancel(self) -> None:
        """Whatever is still on its way to the device is not needed any more."""
        for sending in self.sending.values():
            sending.cancel()
        self.sending.clear()


class Books(msgspec.Struct):
    """The run so far, in numbers; saved with every checkpoint."""

    round: int = 0
    version: int = 0
    turn: int = 0
    counts: dict[str, int] = {}  # how often each device was invited
    durations: tuple[float, ...] = ()
    batches: dict[str, int] = {}  # how many samples each device had last, where they are shared
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_shared: int = 0  # samples between devices
    samples: int = 0
    updates: int = 0
    late: int = 0
    refused: int = 0
    score: dict[str, float] = {}
    best: float = 0.0
    # of the round that is open
    merged: list[tuple[str, int]] = []
    samples_now: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0

    @property
    def traffic(self) -> int:
        return self.bytes_sent + self.bytes_received + self.bytes_shared

    @property
    def loss_now(self) -> float:
        """The mean loss of the updates so far; not a number where none had one."""
        return self.loss_sum / self.loss_samples if self.loss_samples else math.nan

    def add(self, turn: Turn) -> None:
        """An update was merged."""
        self.merged.append((turn.device, turn.number))
        self.samples_now += turn.samples
        loss_sum = self.loss_sum + turn.loss * turn.samples
        if math.isfinite(loss_sum):
            self.loss_sum = loss_sum
            self.loss_samples += turn.samples

    def commit(self) -> None:
        """The round is closed."""
        self.round += 1
        self.version += 1
        self.samples += self.samples_now
        self.updates += len(self.merged)
        self.merged, self.samples_now, self.loss_sum, self.loss_samples = [], 0, 0.0, 0
