"""The control messages of the live transport, besides the loops' messages that it carries.

sender                          receiver
TransferOffer ────────────────▶                       header of a message with a payload (see `wire_format`)
chunk 0, chunk 1, … ──────────▶                       on the same lane
              ◀──────────────── ChunksReceived        how many chunks have arrived; all: the message is complete
              ◀──────────────── ChunksMissing         these did not arrive
STATUS_REQUEST ───────────────▶                       which chunks do you have? (sent after them, on their lane)
TransferAborted ──────────────▶                       the sender gave the message up
              ◀──────────────── TransferDeclined      the receiver does not accept the message

device                          coordinator
DeviceHeartbeat ──────────────▶                       the device is alive and, once its loop listens, ready
              ◀──────────────── CoordinatorHeartbeat  the coordinator is alive; the membership epoch
              ◀──────────────── RunStarted            the run's time 0
              ◀──────────────── Roster                the ready devices, where devices send to each other
              ◀──────────────── Coordinators          where the leader and its standbys listen
JournalBatch ─────────────────▶                       records for the journal
LeaveNotice ──────────────────▶
              ◀──────────────── ExpelNotice           this incarnation is considered lost: join again
              ◀──────────────── RunEnded
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.journal import Instant, Scalar, Span
from potluck.loops.message_limits import DeviceName, Number, ReasonText, RunTime

__all__ = [
    "ChunksMissing",
    "ChunksReceived",
    "ControlMessage",
    "CoordinatorHeartbeat",
    "Coordinators",
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

TransferNumber = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Indices = Annotated[list[Index], msgspec.Meta(max_length=4096)]


class ControlMessage(msgspec.Struct, frozen=True, tag=True):
    """A message of the transport itself; class names are the tags on the wire."""


class ChunksReceived(ControlMessage, frozen=True):
    number: TransferNumber
    count: Index


class ChunksMissing(ControlMessage, frozen=True):
    number: TransferNumber
    indices: Indices


class TransferAborted(ControlMessage, frozen=True):
    number: TransferNumber


class TransferDeclined(ControlMessage, frozen=True):
    number: TransferNumber
    reason: ReasonText


class DeviceHeartbeat(ControlMessage, frozen=True):
    ready: bool  # False while the device is still setting up


class CoordinatorHeartbeat(ControlMessage, frozen=True):
    epoch: Number


class RunStarted(ControlMessage, frozen=True):
    zero: RunTime  # the run's time 0 by the coordinator's clock


class Roster(ControlMessage, frozen=True):
    epoch: Number
    here: Annotated[dict[DeviceName, Number], msgspec.Meta(max_length=65_536)]  # device → incarnation


class Coordinators(ControlMessage, frozen=True):
    addresses: Annotated[list[Annotated[str, msgspec.Meta(max_length=128)]], msgspec.Meta(max_length=16)]


class JournalBatch(ControlMessage, frozen=True):
    records: Annotated[list[Span | Instant | Scalar], msgspec.Meta(max_length=4096)]  # checked one by one


class LeaveNotice(ControlMessage, frozen=True):
    reason: ReasonText
    failed: bool = False  # an error ended the device's main
    trace: Annotated[str, msgspec.Meta(max_length=8_000)] = ""  # if code that every device runs failed


class ExpelNotice(ControlMessage, frozen=True):
    life: Number  # the incarnation that is considered lost
    reason: ReasonText


class RunEnded(ControlMessage, frozen=True):
    reason: ReasonText
