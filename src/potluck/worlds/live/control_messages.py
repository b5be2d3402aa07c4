"""What the transport says for itself, besides carrying the loops' messages.

sender                        receiver
Offer ──────────────────────▶            the header of a long message; its chunks follow on the same lane
chunk 0, chunk 1, … ────────▶
      ◀────────────────────── Got        how many chunks are there (all: the message is whole)
      ◀────────────────────── Missing    these did not come
Ask ────────────────────────▶            what do you have? (behind the chunks, so that the answer is about all)
Abort ──────────────────────▶            the message was given up
      ◀────────────────────── Decline    it will not be taken, and why

device                        coordinator
Beat ───────────────────────▶            I am here and, once my loop listens, ready
      ◀────────────────────── Pulse      so am I, and this is the epoch
      ◀────────────────────── Begin      the run begins
      ◀────────────────────── Roster     who is here, for those who speak to each other
Shipment ───────────────────▶            records for the journal
Goodbye ────────────────────▶
      ◀────────────────────── Expelled   you were taken for lost: come in again
      ◀────────────────────── Over       the run is over
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.journal import Instant, Scalar, Span

__all__ = [
    "ChunksMissing",
    "ChunksReceived",
    "ControlMessage",
    "CoordinatorHeartbeat",
    "DeviceHeartbeat",
    "ExpelNotice",
    "JournalBatch",
    "LeaveNotice",
    "Roster",
    "RunEnded",
    "RunStarted",
    "TransferAborted",
    "TransferDeclined",
]

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Indices = Annotated[list[Index], msgspec.Meta(max_length=4096)]


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """Said by the transport itself."""


class ChunksReceived(ControlMessage, frozen=True):
    number: Number
    count: Index


class ChunksMissing(ControlMessage, frozen=True):
    number: Number
    indices: Indices


class TransferAborted(ControlMessage, frozen=True):
    number: Number


class TransferDeclined(ControlMessage, frozen=True):
    number: Number
    reason: str


class DeviceHeartbeat(ControlMessage, frozen=True):
    ready: bool  # False: I am here, but still getting ready


class CoordinatorHeartbeat(ControlMessage, frozen=True):
    epoch: Number


class RunStarted(ControlMessage, frozen=True):
    zero: float


class Roster(ControlMessage, frozen=True):
    epoch: Number
    here: dict[str, int]


class JournalBatch(ControlMessage, frozen=True):
    records: list[Span | Instant | Scalar]


class LeaveNotice(ControlMessage, frozen=True):
    reason: str
    failed: bool = False  # an error ended it, not an order
    trace: Annotated[str, msgspec.Meta(max_length=8_000)] = ""  # of code that every device runs; it ends the run


class ExpelNotice(ControlMessage, frozen=True):
    life: Number
    reason: str


class RunEnded(ControlMessage, frozen=True):
    reason: str
