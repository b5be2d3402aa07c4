"""The messages of the rounds loop: small typed headers, some with a payload of arrays.

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

Most of them name a *turn*: one invitation of one device. A device repeats every request until it is answered, so
every answer may arrive twice.
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
        """Whether it has a payload and queues on the link; messages without one overtake it."""
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
    """Take part: pull the model, train, push the update. `count` is how often the device was invited before."""

    turn: int
    round: int
    count: int
    gives: tuple[tuple[str, int], ...] = ()  # samples to send to other devices
    gets: int = 0  # samples to expect from other devices
    ahead: bool = False  # before the previous turn is over: layers arrive as they are merged


class Pull(Message, frozen=True):
    """Ask for the model's layers `first` to `last`."""

    turn: int
    first: int
    last: int


class Segment(Bulky, frozen=True, kw_only=True):
    """The model's layers `first` to `last`, and when sending them began."""

    turn: int
    first: int
    last: int
    begun: float = 0.0


class Push(Bulky, frozen=True, kw_only=True):
    """The update of the layers `first` to `last`; the update is complete once all layers have arrived."""

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
    """The coordinator has the update segment that begins at layer `first`."""

    turn: int
    first: int


class Release(Message, frozen=True):
    """The round continues without the device: cancel the turn and confirm.

    With `only`, an earlier turn keeps running; otherwise it is cancelled too. `refused` says why an update could not be
    used.
    """

    turn: int
    only: bool = False
    refused: str = ""


class Released(Message, frozen=True):
    """The device no longer works on that turn."""

    turn: int


class Stop(Message, frozen=True):
    """The run is over."""


class Joined(Message, frozen=True):
    """A device has connected (a membership event)."""

    device: str
    incarnation: int


class Lost(Message, frozen=True):
    """The other side is gone (a membership event), and how that was noticed."""

    device: str
    incarnation: int
    reason: str
