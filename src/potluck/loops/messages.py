"""What the nodes of a run say to each other: small typed headers, some with a payload of numbers.

    coordinator                       device
    Invite ─────────────────────────▶
           ◀───────────────────────── Pull (layers first to last)
    Segment ────────────────────────▶
           ◀───────────────────────── Push (layers first to last)
    Accept ─────────────────────────▶
    Release ────────────────────────▶
           ◀───────────────────────── Released
    Stop ───────────────────────────▶            Joined, Lost: from the world, about the other side
                                      Gift ──▶   to another device, where samples are shared

Most of them name a *turn*: one invitation of one device. Every request of a device is answered, and asked
again until it is; every answer may be given twice.
"""

from __future__ import annotations

import msgspec

from potluck.payload import Payload

__all__ = [
    "HEADER_BYTES",
    "Accept",
    "Bulky",
    "Gift",
    "Invite",
    "Joined",
    "Lost",
    "Message",
    "Pull",
    "Push",
    "Release",
    "Released",
    "Segment",
    "Stop",
]

HEADER_BYTES = 64


class Message(msgspec.Struct, frozen=True, tag=True):
    """A header."""

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES

    @property
    def bulky(self) -> bool:
        """Whether it has a payload and waits its turn on the link; the others overtake."""
        return False


class Bulky(Message, frozen=True):
    """A message with a payload."""

    payload: Payload

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.payload.nbytes

    @property
    def bulky(self) -> bool:
        return True


class Invite(Message, frozen=True):
    """Take part: pull the model, do your work, push the update. `count` is how often you were invited before."""

    turn: int
    round: int
    count: int
    gives: tuple[tuple[str, int], ...] = ()  # samples of its batch that go to other devices
    gets: int = 0  # samples that others send
    ahead: bool = False  # while the turn before is still under way: layers come as they are merged


class Pull(Message, frozen=True):
    """Ask for the model's layers `first` to `last`."""

    turn: int
    first: int
    last: int


class Segment(Bulky, frozen=True, kw_only=True):
    """The model's layers `first` to `last`; `begun` says when they began to be sent."""

    turn: int
    first: int
    last: int
    begun: float = 0.0


class Push(Bulky, frozen=True, kw_only=True):
    """The update of the layers `first` to `last`; the update is whole when all layers are there."""

    turn: int
    first: int
    last: int
    samples: int
    loss: float


class Gift(Bulky, frozen=True, kw_only=True):
    """Samples from one device's stream for another's batch."""

    round: int
    donor: str


class Accept(Message, frozen=True):
    """The coordinator has the update of the layers from `first` on."""

    turn: int
    first: int


class Release(Message, frozen=True):
    """The round goes on without you; drop the turn's work and say so. `only` that turn, if an earlier one goes on;
    `refused` says why, where the work could not be used."""

    turn: int
    only: bool = False
    refused: str = ""


class Released(Message, frozen=True):
    """Nothing of that turn is in work here any more."""

    turn: int


class Stop(Message, frozen=True):
    """The run is over."""


class Joined(Message, frozen=True):
    """A device is here (a membership event)."""

    device: str
    incarnation: int


class Lost(Message, frozen=True):
    """The other side is gone (a membership event), with what was noticed."""

    device: str
    incarnation: int
    reason: str
