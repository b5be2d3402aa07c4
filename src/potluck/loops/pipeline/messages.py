"""What the nodes of a pipeline say to each other.

    coordinator                         device                          device
    Halt ──────────────────────────────▶                                            a new term: stop, what have you?
         ◀───────────────────────────── Inventory
    Assign ────────────────────────────▶ Fetch ────────────────────────▶            your layers, and who has them
                                              ◀──────────────────────── Piece
         ◀───────────────────────────── Ready
    Begin ─────────────────────────────▶                                            a stretch of batches
                                         Activation, Labels ───────────▶
                                              ◀──────────────────────── Gradient
                                         Replica ──────────────────────▶ Kept ──▶ both
         ◀───────────────────────────── Report
    Close ─────────────────────────────▶ Closed                                     the stretch ends earlier
    Inquire ───────────────────────────▶ Doing                                      no batch came for too long
    Finish ────────────────────────────▶ Stuck                                      after a death: what can be completed
    Examine ───────────────────────────▶ Exam, ExamLabels ─────────────▶ Scored     measure the model
    Secure ────────────────────────────▶                                            older versions can go
         ◀───────────────────────────── Refused                                     what somebody sent cannot be used
    Refused ───────────────────────────▶                                            you are out, and why

Everything names its term; what belongs to another one is dropped. Requests are asked again until they are answered,
and what flows between stages is asked for again (Resend) by whoever misses it.
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
    """On the wire these are told from other words of the same name."""
    return f"pipeline.{name}"


class PipelineMessage(Message, frozen=True, tag=_wire_tag):
    """What is said in a pipeline."""


class PipelineBulkMessage(Bulky, frozen=True, tag=_wire_tag):
    """What is sent in a pipeline."""


class Halt(PipelineMessage, frozen=True):
    """A new term begins: drop what is under way and what is not of this history, and tell what you have."""

    term: int
    terms: tuple[tuple[int, int], ...]


class Inventory(PipelineMessage, frozen=True):
    """The versions that a device holds."""

    term: int
    held: tuple[HeldLayers, ...]


class Assign(PipelineMessage, frozen=True):
    """The layout of this term; take your layers from these origins as version `version`, which `made` made."""

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
    """I have my layers."""

    term: int


class Begin(PipelineMessage, frozen=True):
    """Let the batches from `start` to just before `end` flow; answered with a Report."""

    term: int
    start: int
    end: int


class Report(PipelineMessage, frozen=True):
    """How far a stage is, and how long its latest batch took; the last one tells the loss."""

    term: int
    applied: int
    seconds: float = 0.0
    loss: float | None = None
    sent: int = 0  # bytes since the last report


class Close(PipelineMessage, frozen=True):
    """Let the stretch end: to stage 0 with no batch, as soon as possible; to the others before this batch."""

    term: int
    end: int | None = None


class Closed(PipelineMessage, frozen=True):
    """Stage 0 will let no batch from `end` on into the pipeline."""

    term: int
    end: int


class Inquire(PipelineMessage, frozen=True):
    """No batch came for longer than usual: what are you doing?"""

    term: int


class Doing(PipelineMessage, frozen=True):
    """What a stage waits for (from whom, the message, the part), and what it has sent and could send again.

    Also said by who is asked again for what it is still at.
    """

    term: int
    awaits: tuple[tuple[str, str, int], ...] = ()
    sent: tuple[tuple[str, int], ...] = ()


class Finish(PipelineMessage, frozen=True):
    """A stage further on is dead: let nothing more in, and apply what had passed it on its way back."""

    term: int


class Stuck(PipelineMessage, frozen=True):
    """What I wait for was to come from the dead."""

    term: int


class Fetch(PipelineMessage, frozen=True):
    """Ask for some layers."""

    term: int
    first: int
    last: int
    version: int
    moments: bool = True


class Missing(PipelineMessage, frozen=True):
    """What was asked for is not here (any more)."""

    term: int


class Piece(PipelineBulkMessage, frozen=True, kw_only=True):
    """Some layers of a version."""

    term: int
    first: int
    last: int
    version: int


class Activation(PipelineBulkMessage, frozen=True, kw_only=True):
    """A part on its way forward, and the version of the weights that it met on stage 0."""

    term: int
    part: int
    version: int


class Labels(PipelineBulkMessage, frozen=True, kw_only=True):
    """A part's targets, straight to the last stage."""

    term: int
    part: int


class Gradient(PipelineBulkMessage, frozen=True, kw_only=True):
    """A part on its way back."""

    term: int
    part: int


class Resend(PipelineMessage, frozen=True):
    """What I wait for has not come."""

    term: int
    what: str  # the name of the message
    part: int


class Replica(PipelineBulkMessage, frozen=True, kw_only=True):
    """Piece `place` of `count` of a copy of a version, or (`step`) of the step that leads to it from the one before."""

    term: int
    first: int
    last: int
    version: int
    made: int
    place: int
    count: int
    step: bool = False


class Kept(PipelineMessage, frozen=True):
    """The copy is whole and kept, by whoever says so."""

    term: int
    first: int
    last: int
    version: int
    whole: bool = True  # else the step could not be applied: send the version


class Secure(PipelineMessage, frozen=True):
    """Every layer of this version is held twice: older copies can go."""

    term: int
    version: int


class Refused(PipelineMessage, frozen=True):
    """What a device sent cannot be used, and why; said by who got it to the coordinator, and by that to the device."""

    term: int
    device: str
    reason: str


class Examine(PipelineMessage, frozen=True):
    """Measure the model on so many held-out batches; a new attempt makes the one before void."""

    term: int
    attempt: int
    batches: int


class Exam(PipelineBulkMessage, frozen=True, kw_only=True):
    """A held-out batch on its way forward."""

    term: int
    attempt: int
    number: int


class ExamLabels(PipelineBulkMessage, frozen=True, kw_only=True):
    """Its targets, straight to the last stage."""

    term: int
    attempt: int
    number: int


class Scored(PipelineMessage, frozen=True):
    """Sums over all held-out samples; `right` is below 0 where the targets are no classes."""

    term: int
    attempt: int
    loss: float
    right: int
    count: int


KINDS: tuple[type[Message], ...] = (*PipelineMessage.__subclasses__(), *PipelineBulkMessage.__subclasses__())
