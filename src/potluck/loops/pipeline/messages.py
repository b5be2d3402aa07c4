"""The messages of the pipeline loop.

    coordinator                         device                          device
    Halt ──────────────────────────────▶                                            a new term: list your layers
         ◀───────────────────────────── Inventory
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

from potluck.loops.messages import Bulky, Message
from potluck.loops.pipeline.layer_sources import HeldLayers, LayerOrigin

__all__ = [
    "KINDS",
    "Activation", "Assign", "Begin", "Close", "Closed", "Doing", "Exam", "ExamLabels", "Examine", "Fetch", "Finish",
    "Gradient", "Halt", "Inquire", "Inventory", "Kept", "Labels", "Missing", "Piece", "Ready", "Refused", "Replica",
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
    """A new term begins: drop what is in flight and what is not of this history, and answer with an Inventory."""

    term: int
    terms: tuple[tuple[int, int], ...]


class Inventory(PipelineMessage, frozen=True):
    """The versions that a device holds."""

    term: int
    held: tuple[HeldLayers, ...]


class Assign(PipelineMessage, frozen=True):
    """The layout of this term; take your layers from these origins as version `version`, made in term `made`."""

    term: int
    cuts: tuple[int, ...]
    order: tuple[str, ...]
    windows: tuple[int, ...]
    stride: int
    keepers: tuple[str, ...]
    version: int
    made: int
    origins: tuple[LayerOrigin, ...]


class Ready(PipelineMessage, frozen=True):
    """The stage has its layers."""

    term: int


class Begin(PipelineMessage, frozen=True):
    """Run the batches from `start` to just before `end`; answered with a Report."""

    term: int
    start: int
    end: int


class Report(PipelineMessage, frozen=True):
    """How far a stage is, and how long its latest batch took; the last stage adds the loss."""

    term: int
    applied: int
    seconds: float = 0.0
    loss: float | None = None
    sent: int = 0  # bytes since the last report


class Close(PipelineMessage, frozen=True):
    """End the range before batch `end`; without it, to stage 0, as soon as possible."""

    term: int
    end: int | None = None


class Closed(PipelineMessage, frozen=True):
    """Stage 0 will not start batch `end` or later ones."""

    term: int
    end: int


class Inquire(PipelineMessage, frozen=True):
    """A batch is overdue: what is the stage waiting for?"""

    term: int


class Doing(PipelineMessage, frozen=True):
    """What a stage waits for (sender, message, micro-batch), and what it has sent and could send again.

    Also the answer to a repeated request that is still being worked on.
    """

    term: int
    awaits: tuple[tuple[str, str, int], ...] = ()
    sent: tuple[tuple[str, int], ...] = ()


class Finish(PipelineMessage, frozen=True):
    """A later stage is dead: start no more batches, and apply those that had passed it on their way back."""

    term: int


class Stuck(PipelineMessage, frozen=True):
    """The stage waits for a message of the dead one."""

    term: int


class Fetch(PipelineMessage, frozen=True):
    """Ask for some layers."""

    term: int
    first: int
    last: int
    version: int
    moments: bool = True


class Missing(PipelineMessage, frozen=True):
    """The device does not hold the layers that were asked for."""

    term: int


class Piece(PipelineBulkMessage, frozen=True, kw_only=True):
    """Some layers of a version."""

    term: int
    first: int
    last: int
    version: int


class Activation(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch on its way forward, and the version of the weights that it used on stage 0."""

    term: int
    part: int
    version: int


class Labels(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch's labels, sent directly to the last stage."""

    term: int
    part: int


class Gradient(PipelineBulkMessage, frozen=True, kw_only=True):
    """A micro-batch on its way back."""

    term: int
    part: int


class Resend(PipelineMessage, frozen=True):
    """A micro-batch that the stage waits for has not arrived."""

    term: int
    what: str  # the name of the message
    part: int


class Replica(PipelineBulkMessage, frozen=True, kw_only=True):
    """Chunk `place` of `count` of a copy of a version or, with `step`, of the step that leads to it."""

    term: int
    first: int
    last: int
    version: int
    made: int
    place: int
    count: int
    step: bool = False


class Kept(PipelineMessage, frozen=True):
    """The sender holds a complete copy."""

    term: int
    first: int
    last: int
    version: int
    whole: bool = True  # False: the step could not be applied, send the version


class Secure(PipelineMessage, frozen=True):
    """Every layer of this version is held twice: older copies may be dropped."""

    term: int
    version: int


class Refused(PipelineMessage, frozen=True):
    """What a device sent cannot be used, and why: from its receiver to the coordinator, from that to the device."""

    term: int
    device: str
    reason: str


class Examine(PipelineMessage, frozen=True):
    """Evaluate the model on this many held-out batches; a new attempt replaces the one before."""

    term: int
    attempt: int
    batches: int


class Exam(PipelineBulkMessage, frozen=True, kw_only=True):
    """A held-out batch on its way forward."""

    term: int
    attempt: int
    number: int


class ExamLabels(PipelineBulkMessage, frozen=True, kw_only=True):
    """Its labels, sent directly to the last stage."""

    term: int
    attempt: int
    number: int


class Scored(PipelineMessage, frozen=True):
    """Sums over all held-out samples; `right` is below 0 if the labels are not classes."""

    term: int
    attempt: int
    loss: float
    right: int
    count: int


KINDS: tuple[type[Message], ...] = (*PipelineMessage.__subclasses__(), *PipelineBulkMessage.__subclasses__())
