"""The messages of the pipeline loop.

    coordinator                         device                          device
    Halt ──────────────────────────────▶                                            a new term: list your layers
         ◀───────────────────────────── Inventory
    Measure ───────────────────────────▶ Measured                                   once: how long does each layer take?
    Assign ────────────────────────────▶ Fetch ────────────────────────▶            your layers, and where to get them
                                              ◀──────────────────────── Piece
         ◀───────────────────────────── Ready
    Begin ─────────────────────────────▶                                            a range of batches
                                         Activation, Labels ───────────▶
                                              ◀──────────────────────── Gradient
                                         Replica ──────────────────────▶ Kept ──▶ both
         ◀───────────────────────────── Report
    Close ─────────────────────────────▶ Closed                                     the range ends earlier
    Inquire ───────────────────────────▶ Doing                                      a batch is overdue
    Finish ────────────────────────────▶ Stuck                                      after a death: complete what can be
    Examine ───────────────────────────▶ Exam, ExamLabels ─────────────▶ Scored     evaluate the model
    Secure ────────────────────────────▶                                            older versions may be dropped
         ◀───────────────────────────── Refused                                     a device's message cannot be used
    Refused ───────────────────────────▶                                            you are excluded, and why

Every message names its term, and one of another term is dropped. Requests are repeated until they are answered; a stage
that misses a micro-batch (field `part`) asks for it again (Resend).
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.loops.message_limits import (
    AnyFloat,
    BoundedTuple,
    ByteCount,
    DeviceName,
    Duration,
    Label,
    Number,
    ReasonText,
)
from potluck.loops.messages import Bulky, Message
from potluck.loops.pipeline.layer_sources import HeldLayers, LayerOrigin

__all__ = [
    "KINDS",
    "Activation", "Assign", "Begin", "Close", "Closed", "Doing", "Exam", "ExamLabels", "Examine", "Fetch", "Finish",
    "Gradient", "Halt", "Inquire", "Inventory", "Kept", "Labels", "Measure", "Measured", "Missing", "Piece",
    "Ready", "Refused", "Replica",
    "Report", "Resend", "Scored", "Secure", "Stuck",
]  # fmt: skip


def _wire_tag(name: str) -> str:
    """A prefix distinguishes these from messages of the same name on the wire."""
    return f"pipeline.{name}"


class PipelineMessage(Message, frozen=True, tag=_wire_tag):
    """A message of the pipeline loop."""


class PipelineBulkMessage(Bulky, frozen=True, tag=_wire_tag):
    """A message of the pipeline loop with a payload."""


class Halt(PipelineMessage, frozen=True):
    """A new term begins: drop what is in flight and what is not of this history, and answer with an Inventory.

    With `idle`, answer only once nothing is computed any more: a device that was left out may still hang.
    """

    term: Number
    terms: BoundedTuple[tuple[Number, Number]]
    idle: bool = False


class Inventory(PipelineMessage, frozen=True):
    """The versions that a device holds."""

    term: Number
    held: BoundedTuple[HeldLayers]


class Measure(PipelineMessage, frozen=True):
    """Measure how long each layer of the model takes on this device."""

    term: Number


class Measured(PipelineMessage, frozen=True):
    """Seconds of a batch in each layer."""

    term: Number
    forward: BoundedTuple[Duration]
    backward: BoundedTuple[Duration]


class Assign(PipelineMessage, frozen=True):
    """The layout of this term; take your layers from these origins as version `version`, made in term `made`."""

    term: Number
    cuts: BoundedTuple[Number]
    order: BoundedTuple[DeviceName]
    windows: BoundedTuple[Number]
    stride: Number
    keepers: BoundedTuple[DeviceName]  # the replica holder of each stage
    version: Number
    made: Number
    origins: BoundedTuple[LayerOrigin]


class Ready(PipelineMessage, frozen=True):
    """The stage has its layers."""

    term: Number


class Begin(PipelineMessage, frozen=True):
    """Run the batches from `start` to just before `end`; answered with a Report."""

    term: Number
    start: Number
    end: Number
    drops: BoundedTuple[Number] = ()  # of a learning rate that follows a metric


class Report(PipelineMessage, frozen=True):
    """How far a stage is, and how long its latest batch took; the last stage adds the loss."""

    term: Number
    applied: Number
    seconds: Duration = 0.0
    loss: AnyFloat | None = None
    sent: ByteCount = 0  # bytes since the last report
    layers: BoundedTuple[Duration] = ()  # seconds of the batch in each layer of the stage, where they were timed
    received: BoundedTuple[tuple[DeviceName, ByteCount, Duration]] = ()  # by sender: the largest message since then


class Close(PipelineMessage, frozen=True):
    """End the range before batch `end`; without it, to stage 0, as soon as possible."""

    term: Number
    end: Number | None = None


class Closed(PipelineMessage, frozen=True):
    """Stage 0 will not start batch `end` or later ones."""

    term: Number
    end: Number


class Inquire(PipelineMessage, frozen=True):
    """A batch is overdue: what is the stage waiting for?"""

    term: Number


class Doing(PipelineMessage, frozen=True):
    """What a stage waits for (sender, message, micro-batch), and what it has sent and could send again.

    A stage that waits until a copy is confirmed awaits the holder's `Kept` of that version. This is also the answer to
    a repeated request that is still being worked on.
    """

    term: Number
    awaits: BoundedTuple[tuple[DeviceName, Label, Number]] = ()
    sent: BoundedTuple[tuple[Label, Number]] = ()
    copied: Number = 0  # chunks of copies that it has sent in this term
    computes: tuple[Label, Number] | None = None  # the pass and micro-batch that it computes at present


class Finish(PipelineMessage, frozen=True):
    """A later stage is dead: start no more batches, and apply those that had passed it on their way back."""

    term: Number


class Stuck(PipelineMessage, frozen=True):
    """The stage waits for a message of the dead one."""

    term: Number


class Fetch(PipelineMessage, frozen=True):
    """Ask for some layers."""

    term: Number
    first: Number
    last: Number
    version: Number
    moments: bool = True


class Missing(PipelineMessage, frozen=True):
    """The device does not hold the layers that were asked for."""

    term: Number


class Piece(PipelineBulkMessage, frozen=True, kw_only=True):
    """Some layers of a version."""

    term: Number
    first: Number
    last: Number
    version: Number


class Activation(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch on its way forward, and the version of the weights that it used on stage 0."""

    term: Number
    part: Number
    version: Number


class Labels(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch's labels, sent directly to the last stage."""

    term: Number
    part: Number


class Gradient(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch on its way back."""

    term: Number
    part: Number


class Resend(PipelineMessage, frozen=True):
    """A micro-batch that the stage waits for has not arrived."""

    term: Number
    what: Label  # the name of the message
    part: Number


class Replica(PipelineBulkMessage, frozen=True, kw_only=True):
    """Chunk `place` of `count` of a copy of a version or, with `step`, of the step that leads to it."""

    term: Number
    first: Number
    last: Number
    version: Number
    made: Number
    place: Number
    count: Number
    step: bool = False
    drops: BoundedTuple[Number] = ()  # of the learning rate, for the step


class Kept(PipelineMessage, frozen=True):
    """The sender holds a complete copy."""

    term: Number
    first: Number
    last: Number
    version: Number
    whole: bool = True  # False: the step could not be applied, send the version


class Secure(PipelineMessage, frozen=True):
    """Every layer of this version is held twice: older copies may be dropped."""

    term: Number
    version: Number


class Refused(PipelineMessage, frozen=True):
    """What a device sent cannot be used, and why: from its receiver to the coordinator, from that to the device."""

    term: Number
    device: DeviceName
    reason: ReasonText


class Examine(PipelineMessage, frozen=True):
    """Evaluate the model on this many held-out batches; a new attempt replaces the one before."""

    term: Number
    attempt: Number
    batches: Number


class Exam(PipelineBulkMessage, frozen=True, kw_only=True):
    """A held-out batch on its way forward."""

    term: Number
    attempt: Number
    number: Number


class ExamLabels(PipelineBulkMessage, frozen=True, kw_only=True):
    """Its labels, sent directly to the last stage."""

    term: Number
    attempt: Number
    number: Number


class Scored(PipelineMessage, frozen=True):
    """Sums over all held-out samples, and the metrics that the task lists; `right` is below 0 without accuracy."""

    term: Number
    attempt: Number
    loss: AnyFloat
    right: Annotated[int, msgspec.Meta(ge=-1, le=2**53)]
    count: Number
    positions: Number = 0  # that have a label: samples, tokens or pixels
    metrics: Annotated[dict[Label, AnyFloat], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=dict)


KINDS: tuple[type[Message], ...] = (*PipelineMessage.__subclasses__(), *PipelineBulkMessage.__subclasses__())
