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
from potluck.loops.pipeline.sourcing import Held, Origin

__all__ = [
    "KINDS",
    "Activation", "Assign", "Begin", "Close", "Closed", "Doing", "Exam", "ExamLabels", "Examine", "Fetch", "Finish",
    "Gradient", "Halt", "Inquire", "Inventory", "Kept", "Labels", "Missing", "Piece", "Ready", "Refused", "Replica",
    "Report", "Resend", "Scored", "Secure", "Stuck",
]  # fmt: skip


def _tag(name: str) -> str:
    """On the wire these are told from other words of the same name."""
    return f"pipeline.{name}"


class Word(Message, frozen=True, tag=_tag):
    """What is said in a pipeline."""


class Load(Bulky, frozen=True, tag=_tag):
    """What is sent in a pipeline."""


class Halt(Word, frozen=True):
    """A new term begins: drop what is under way and what is not of this history, and tell what you have."""

    term: int
    terms: tuple[tuple[int, int], ...]


class Inventory(Word, frozen=True):
    """The versions that a device holds."""

    term: int
    held: tuple[Held, ...]


class Assign(Word, frozen=True):
    """The layout of this term; take your layers from these origins as version `version`, which `made` made."""

    term: int
    cuts: tuple[int, ...]
    order: tuple[str, ...]
    windows: tuple[int, ...]
    stride: int
    keepers: tuple[str, ...]
    version: int
    made: int
    origins: tuple[Origin, ...]


class Ready(Word, frozen=True):
    """I have my layers."""

    term: int


class Begin(Word, frozen=True):
    """Let the batches from `start` to just before `end` flow; answered with a Report."""

    term: int
    start: int
    end: int


class Report(Word, frozen=True):
    """How far a stage is, and how long its latest batch took; the last one tells the loss."""

    term: int
    applied: int
    seconds: float = 0.0
    loss: float | None = None
    sent: int = 0  # bytes since the last report


class Close(Word, frozen=True):
    """Let the stretch end: to stage 0 with no batch, as soon as possible; to the others before this batch."""

    term: int
    end: int | None = None


class Closed(Word, frozen=True):
    """Stage 0 will let no batch from `end` on into the pipeline."""

    term: int
    end: int


class Inquire(Word, frozen=True):
    """No batch came for longer than usual: what are you doing?"""

    term: int


class Doing(Word, frozen=True):
    """What a stage waits for (from whom, the message, the part), and what it has sent and could send again.

    Also said by who is asked again for what it is still at.
    """

    term: int
    awaits: tuple[tuple[str, str, int], ...] = ()
    sent: tuple[tuple[str, int], ...] = ()


class Finish(Word, frozen=True):
    """A stage further on is dead: let nothing more in, and apply what had passed it on its way back."""

    term: int


class Stuck(Word, frozen=True):
    """What I wait for was to come from the dead."""

    term: int


class Fetch(Word, frozen=True):
    """Ask for some layers."""

    term: int
    first: int
    last: int
    version: int
    moments: bool = True


class Missing(Word, frozen=True):
    """What was asked for is not here (any more)."""

    term: int


class Piece(Load, frozen=True, kw_only=True):
    """Some layers of a version."""

    term: int
    first: int
    last: int
    version: int


class Activation(Load, frozen=True, kw_only=True):
    """A part on its way forward, and the version of the weights that it met on stage 0."""

    term: int
    part: int
    version: int


class Labels(Load, frozen=True, kw_only=True):
    """A part's targets, straight to the last stage."""

    term: int
    part: int


class Gradient(Load, frozen=True, kw_only=True):
    """A part on its way back."""

    term: int
    part: int


class Resend(Word, frozen=True):
    """What I wait for has not come."""

    term: int
    what: str  # the name of the message
    part: int


class Replica(Load, frozen=True, kw_only=True):
    """Piece `place` of `count` of a copy of a version, or (`step`) of the step that leads to it from the one before."""

    term: int
    first: int
    last: int
    version: int
    made: int
    place: int
    count: int
    step: bool = False


class Kept(Word, frozen=True):
    """The copy is whole and kept, by whoever says so."""

    term: int
    first: int
    last: int
    version: int
    whole: bool = True  # else the step could not be applied: send the version


class Secure(Word, frozen=True):
    """Every layer of this version is held twice: older copies can go."""

    term: int
    version: int


class Refused(Word, frozen=True):
    """What a device sent cannot be used, and why; said by who got it to the coordinator, and by that to the device."""

    term: int
    device: str
    reason: str


class Examine(Word, frozen=True):
    """Measure the model on so many held-out batches; a new attempt makes the one before void."""

    term: int
    attempt: int
    batches: int


class Exam(Load, frozen=True, kw_only=True):
    """A held-out batch on its way forward."""

    term: int
    attempt: int
    number: int


class ExamLabels(Load, frozen=True, kw_only=True):
    """Its targets, straight to the last stage."""

    term: int
    attempt: int
    number: int


class Scored(Word, frozen=True):
    """Sums over all held-out samples; `right` is below 0 where the targets are no classes."""

    term: int
    attempt: int
    loss: float
    right: int
    count: int


KINDS: tuple[type[Message], ...] = (*Word.__subclasses__(), *Load.__subclasses__())
