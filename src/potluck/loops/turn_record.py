"""The coordinator's view of one turn: what was sent to a device, and what of its update has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple

from potluck.loops.messages import Invite, Push
from potluck.model.update_merging import FULL_LENGTH, UpdateNorm
from potluck.payload import Payload

__all__ = ["TurnRecord", "UpdateSegment"]


class UpdateSegment(NamedTuple):
    """The update of the layers `first` to `last`, or of the leading units `kept` of every channel set in them."""

    first: int
    last: int
    payload: Payload
    kept: tuple[int, ...] = ()


class TurnRecord:
    """One invitation of one device, until its update is complete or the turn is released."""

    __slots__ = (
        "_segments",
        "device",
        "has_answered",
        "heard_at",
        "incarnation",
        "invite",
        "invited_at",
        "loss",
        "norm",
        "number",
        "pending_sends",
        "received",
        "samples",
        "scale",
        "state",
        "submodel",
        "transfers",
        "version",
    )  # fmt: skip

    def __init__(self, invite: Invite, device: str, incarnation: int, invited_at: float) -> None:
        self.invite = invite
        self.number = invite.turn
        self.device = device
        self.incarnation = incarnation
        self.invited_at = invited_at
        self.version = 0  # of the model that the turn starts from
        self.state: Any = None  # that model
        self.submodel: Any = None  # the part of it that the device trains
        self.has_answered = False
        self.heard_at = invited_at  # when something of the turn last arrived
        self.samples = 0
        self.received = 0  # of these, by its own account, how many other devices sent
        self.loss = 0.0
        self.transfers: list[tuple[int, float]] = []  # bytes and seconds of the segments that have arrived
        self.norm: UpdateNorm | None = None  # of the complete update, if it is measured
        self.scale = FULL_LENGTH  # that it is merged with
        self.pending_sends: dict[int, asyncio.Future[None]] = {}
        self._segments: dict[int, UpdateSegment] = {}

    def start_from(self, state: Any, version: int) -> None:
        self.state, self.version = state, version

    @property
    def segments(self) -> list[UpdateSegment]:
        return list(self._segments.values())

    def add_segment(self, push: Push, samples: int) -> None:
        """Store a segment of an update that counts for so many samples; receiving it twice changes nothing."""
        self._segments.setdefault(push.first, UpdateSegment(push.first, push.last, push.payload, push.kept))
        self.samples, self.received, self.loss = samples, push.received, push.loss

    def segment_refusal(self, push: Push, layers: int) -> str | None:
        """Why a segment cannot be part of the update: no such layers, or they overlap another segment."""
        first, last = push.first, push.last
        if not 0 <= first <= last < layers:
            return f"it sent layers {first} to {last} of a model with {layers}"
        for other in self._segments.values():
            if first <= other.last and other.first <= last and (first, last) != (other.first, other.last):
                return f"it sent layers {first} to {last} after {other.first} to {other.last}, which overlap"
        return None

    def covers_layer(self, layer: int) -> bool:
        """Whether the update of a layer has arrived."""
        return any(segment.first <= layer <= segment.last for segment in self._segments.values())

    def is_complete(self, layers: int) -> bool:
        return sum(segment.last - segment.first + 1 for segment in self._segments.values()) == layers

    def track_send(self, first: int, sending: Awaitable[None]) -> None:
        if isinstance(sending, asyncio.Future):
            self.pending_sends[first] = sending

    @property
    def is_sending(self) -> bool:
        """Whether a part of the model is on its way to the device."""
        return any(not sending.done() for sending in self.pending_sends.values())

    def cancel_sends(self) -> None:
        """Cancel the transfers to the device that are still in flight."""
        for sending in self.pending_sends.values():
            sending.cancel()
        self.pending_sends.clear()
