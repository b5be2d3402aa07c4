"""The rules of asynchronous 1F1B: which task a stage runs next, decided from its own progress alone.

A stage has a window w: the number of batches that may be in flight between its forward and its backward. It runs w
forwards, then alternates one backward and one forward, and when no batch is left, the remaining backwards. So exactly
one task is due at any time, and arrivals only decide when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "StageProgress", "backward_ready", "due_task", "forward_ready"]

Kind = Literal["forward", "backward"]


def forward_ready(batch: int, *, forward: int, backward: int, window: int, start: int = 0) -> bool:
    """Whether a batch's forward may run; `forward` and `backward` are the last completed ones, initially start − 1."""
    return forward == batch - 1 and (batch - start < window or backward == batch - window)


def backward_ready(batch: int, *, forward: int, backward: int, window: int, draining: bool) -> bool:
    """Whether a batch's backward may run; `draining` means that the forward of the last batch is done."""
    return backward == batch - 1 and batch <= forward and (draining or forward == batch + window - 1)


@dataclass(frozen=True)
class StageProgress:
    """The last forward and backward that one stage has completed of the batches `start` to `end` − 1."""

    window: int
    end: int
    start: int = 0
    forward: int = -1
    backward: int = -1

    @classmethod
    def at_start(cls, window: int, end: int, start: int = 0) -> StageProgress:
        return cls(window, end, start, start - 1, start - 1)

    @property
    def draining(self) -> bool:
        return self.forward == self.end - 1

    def after_task(self, kind: Kind) -> StageProgress:
        """The progress after the due task, which is of this kind."""
        forward = self.forward + (kind == "forward")
        backward = self.backward + (kind == "backward")
        return StageProgress(self.window, self.end, self.start, forward, backward)


def due_task(progress: StageProgress) -> tuple[Kind, int] | None:
    """The task that may run next; None when all are done."""
    at = progress
    if backward_ready(
        at.backward + 1, forward=at.forward, backward=at.backward, window=at.window, draining=at.draining
    ):
        return "backward", at.backward + 1
    batch = at.forward + 1
    if batch < at.end and forward_ready(
        batch, forward=at.forward, backward=at.backward, window=at.window, start=at.start
    ):
        return "forward", batch
    return None
