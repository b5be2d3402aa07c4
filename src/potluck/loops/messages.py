"""The messages of the rounds loop: small typed headers, some with a payload of arrays.

    coordinator                       device
           ◀───────────────────────── Holdings                             in a live run, when it joins
    Invite ─────────────────────────▶
           ◀───────────────────────── Pull (layers first to last)
    Segment ────────────────────────▶
           ◀───────────────────────── Push (layers first to last)
    Accept ─────────────────────────▶
    Release ────────────────────────▶
           ◀───────────────────────── Released
           ◀───────────────────────── FrozenPull           where it could not build the frozen weights itself
    FrozenSegment ──────────────────▶
    Give ───────────────────────────▶            where devices send each other samples
                                      Gift ──▶   to another device
    Stop ───────────────────────────▶            Joined, Lost: from the world, about the other side

Most of them name a *turn*: one invitation of one device. A device repeats every request until it is answered, so
every answer may arrive twice.
"""

from __future__ import annotations

import msgspec

from potluck.loops.message_limits import AnyFloat, BoundedTuple, ByteCount, DeviceName, Duration, Number, ReasonText
from potluck.payload import Payload

__all__ = [
    "HEADER_BYTES",
    "Accept",
    "Bulky",
    "FrozenPull",
    "FrozenSegment",
    "Gift",
    "GiftOrder",
    "Give",
    "Holdings",
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

    turn: Number
    round: Number
    count: Number
    donors: Number = 0  # devices that send samples for this turn
    gets: Number = 0  # the most samples that these send together
    ahead: bool = False  # before the previous turn is over: layers arrive as they are merged
    drops: BoundedTuple[Number] = ()  # of a local learning rate that follows a metric
    pushed: BoundedTuple[tuple[ByteCount, Duration]] = ()  # bytes and seconds of the latest update's transfers
    segments: BoundedTuple[tuple[Number, Number]] = ()  # layers to push, in order, where all devices push alike


class Pull(Message, frozen=True):
    """Ask for the model's layers `first` to `last`."""

    turn: Number
    first: Number
    last: Number
    held: Number = 0  # the version that the device holds, where pulls are compressed; 0: none


class Segment(Bulky, frozen=True, kw_only=True):
    """The model's layers `first` to `last`; `queued` if they had to wait until another segment had left.

    Where pulls are compressed: of which version, and from which one on the payload has the differences (0: none).
    """

    turn: Number
    first: Number
    last: Number
    queued: bool = False
    version: Number = 0
    base: Number = 0


class FrozenPull(Message, frozen=True):
    """Ask for the frozen weights of the layers `first` to `last`; in a pipeline too."""

    first: Number
    last: Number


class FrozenSegment(Bulky, frozen=True, kw_only=True):
    """The frozen weights of the layers `first` to `last`, as bytes, one array for each tensor."""

    first: Number
    last: Number


class Push(Bulky, frozen=True, kw_only=True):
    """The update of the layers `first` to `last`; the update is complete once all layers have arrived.

    `kept` are the units of every channel set that it covers, where a device pushes only what it trained; empty: all.
    """

    turn: Number
    first: Number
    last: Number
    samples: Number
    loss: AnyFloat
    received: Number = 0  # of these samples, how many other devices sent
    kept: BoundedTuple[Number] = ()


class Holdings(Message, frozen=True):
    """How many samples the device holds; sent once, before it joins. No update of it counts for more."""

    samples: Number


class GiftOrder(msgspec.Struct, frozen=True, array_like=True):
    """Samples for one turn of one device; `amounts` are pairs of a class and a number, or one pair of any class."""

    receiver: DeviceName
    turn: Number  # of the receiver
    amounts: BoundedTuple[tuple[Number, Number]]


class Give(Message, frozen=True):
    """Send other devices copies of samples, from the batch of this turn or a later one."""

    turn: Number
    orders: BoundedTuple[GiftOrder]
    by_class: bool = False


class Gift(Bulky, frozen=True, kw_only=True):
    """Samples from one device's stream for another's batch; none, if its batch has none of those that were asked."""

    turn: Number  # of the receiver
    donor: DeviceName


class Accept(Message, frozen=True):
    """The coordinator has the update segment that begins at layer `first`."""

    turn: Number
    first: Number


class Release(Message, frozen=True):
    """The round continues without the device: cancel the turn and confirm.

    With `only`, an earlier turn keeps running; otherwise it is cancelled too. `refused` says why an update could not be
    used. With `idle`, confirm only once nothing is computed any more: a step that hangs cannot be cancelled.
    """

    turn: Number
    only: bool = False
    refused: ReasonText = ""
    idle: bool = False


class Released(Message, frozen=True):
    """The device no longer works on that turn; with `idle`, on anything."""

    turn: Number
    idle: bool = False


class Stop(Message, frozen=True):
    """The run is over."""


class Joined(Message, frozen=True):
    """A device has connected (a membership event)."""

    device: DeviceName
    incarnation: Number


class Lost(Message, frozen=True):
    """The other side is gone (a membership event), and how that was noticed."""

    device: DeviceName
    incarnation: Number
    reason: ReasonText
