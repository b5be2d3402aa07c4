"""What the coordinator keeps in mind: the turns under way, and the books of the run that a checkpoint saves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, NamedTuple

import msgspec

from potluck.loops.messages import Invite, Push
from potluck.payload import Payload

__all__ = ["RunOutcome", "RunProgress", "TurnRecord"]


class RunOutcome(NamedTuple):
    """How a run ended: "done", "failed" or "interrupted", and why."""

    status: str
    reason: str


class UpdateSegment(NamedTuple):
    """The update of the layers `first` to `last`."""

    first: int
    last: int
    payload: Payload


class TurnRecord:
    """One invitation of one device, until its update is whole or it is out."""

    __slots__ = (
        "_segments",
        "device",
        "has_answered",
        "incarnation",
        "invite",
        "invited_at",
        "loss",
        "number",
        "pending_sends",
        "retry_at",
        "retry_pause_s",
        "samples",
        "state",
        "submodel",
        "version",
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
        self.submodel = part  # of the model, that this turn is about
        self.invited_at = began
        self.has_answered = False
        self.retry_pause_s = 0.0
        self.retry_at = 0.0
        self.samples = 0
        self.loss = 0.0
        self.pending_sends: dict[int, asyncio.Future[None]] = {}
        self._segments: dict[int, UpdateSegment] = {}

    @property
    def segments(self) -> list[UpdateSegment]:
        return list(self._segments.values())

    def add_segment(self, push: Push) -> None:
        """Keep a segment of the update; the same one again changes nothing."""
        self._segments.setdefault(push.first, UpdateSegment(push.first, push.last, push.payload))
        self.samples, self.loss = push.samples, push.loss

    def segment_refusal(self, push: Push, layers: int) -> str | None:
        """Why a segment has no place in the update: there are no such layers, or some of them came in another one."""
        first, last = push.first, push.last
        if not 0 <= first <= last < layers:
            return f"it sent layers {first} to {last} of a model with {layers}"
        for piece in self._segments.values():
            if first <= piece.last and piece.first <= last and (first, last) != (piece.first, piece.last):
                return f"it sent layers {first} to {last} after {piece.first} to {piece.last}, which overlap"
        return None

    def covers_layer(self, layer: int) -> bool:
        """Whether the update of a layer has come."""
        return any(piece.first <= layer <= piece.last for piece in self._segments.values())

    def is_complete(self, layers: int) -> bool:
        covered = sum(piece.last - piece.first + 1 for piece in self._segments.values())
        return covered == layers

    def track_send(self, first: int, sending: Awaitable[None]) -> None:
        if isinstance(sending, asyncio.Future):
            self.pending_sends[first] = sending

    def cancel_sends(self) -> None:
        """Whatever is still on its way to the device is not needed any more."""
        for sending in self.pending_sends.values():
            sending.cancel()
        self.pending_sends.clear()


class RunProgress(msgspec.Struct):
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
    def traffic_bytes(self) -> int:
        return self.bytes_sent + self.bytes_received + self.bytes_shared

    @property
    def mean_loss(self) -> float:
        """The mean loss of the updates so far; not a number where none had one."""
        return self.loss_sum / self.loss_samples if self.loss_samples else math.nan

    def add_update(self, turn: TurnRecord) -> None:
        """An update was merged."""
        self.merged.append((turn.device, turn.number))
        self.samples_now += turn.samples
        loss_sum = self.loss_sum + turn.loss * turn.samples
        if math.isfinite(loss_sum):
            self.loss_sum = loss_sum
            self.loss_samples += turn.samples

    def commit_round(self) -> None:
        """The round is closed."""
        self.round += 1
        self.version += 1
        self.samples += self.samples_now
        self.updates += len(self.merged)
        self.merged, self.samples_now, self.loss_sum, self.loss_samples = [], 0, 0.0, 0
