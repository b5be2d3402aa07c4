"""What the nodes of a run say to each other: small typed headers, some with a payload of numbers.

    coordinator                       device
    Invite ─────────────────────────▶
           ◀───────────────────────── Pull (segment k)
    Segment ────────────────────────▶
           ◀───────────────────────── Push (segment k)
    Accept ─────────────────────────▶
    Release, Stop ──────────────────▶            Joined, Lost: from the world, to the coordinator

Every request of a device is answered, and asked again until it is; every answer may be given twice.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = [
    "HEADER_BYTES",
    "Accept",
    "Invite",
    "Joined",
    "Lost",
    "Message",
    "Payload",
    "Pull",
    "Push",
    "Release",
    "Segment",
    "Stop",
]

HEADER_BYTES = 64


class Payload(msgspec.Struct, frozen=True):
    """Numbers on the wire: `nbytes` is what is sent; the arrays are absent where only time is modelled."""

    nbytes: int
    arrays: tuple[Any, ...] = ()


class Message(msgspec.Struct, frozen=True, tag=True):
    """A header; subclasses with a payload count its bytes."""

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES


class Invite(Message, frozen=True):
    """Take part in a round, starting from the model's `version`."""

    round: int
    version: int
    pull: tuple[tuple[int, int], ...]  # the segments, as first and last layer, in the order of the transfer
    push: tuple[tuple[int, int], ...]


class Pull(Message, frozen=True):
    round: int
    segment: int


class Segment(Message, frozen=True):
    round: int
    segment: int
    payload: Payload

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.payload.nbytes


class Push(Message, frozen=True):
    """One segment of a device's update; the last one makes it whole."""

    round: int
    segment: int
    payload: Payload
    samples: int
    loss: float

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.payload.nbytes


class Accept(Message, frozen=True):
    """The coordinator has this segment of the update."""

    round: int
    segment: int


class Release(Message, frozen=True):
    """The round went on without you; drop its work."""

    round: int


class Stop(Message, frozen=True):
    """The run is over."""


class Joined(Message, frozen=True):
    """A device is here (membership event)."""

    device: str
    incarnation: int


class Lost(Message, frozen=True):
    """A device is gone (membership event), with what was noticed."""

    device: str
    incarnation: int
    reason: str
