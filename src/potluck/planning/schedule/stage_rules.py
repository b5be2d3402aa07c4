"""The rule of asynchronous 1F1B: which batch a stage may take next, from its own progress alone.

A stage has a window w: the batches that may be in flight between its forward and its backward. It does w forwards,
then one backward and one forward in turn, then, when no batch is left, the backwards that remain. So at any moment
exactly one task is due, and what has arrived only decides when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Kind", "StageProgress", "backward_ready", "due_task", "forward_ready"]

Kind = Literal["forward", "backward"]


def forward_ready(batch: int, *, forward: int, backward: int, window: int, start: int = 0) -> bool:
    """Whether a batch's forward may run; `forward` and `backward` are the last committed ones, at first start − 1."""
    return forward == batch - 1 and (batch - start < window or backward == batch - window)


def backward_ready(batch: int, *, forward: int, backward: int, window: int, draining: bool) -> bool:
    """Whether the backward of a batch may run; `draining` once the stage has done the forward of the last batch."""
    return backward == batch - 1 and batch <= forward and (draining or forward == batch + window - 1)


@dataclass(frozen=True)
class StageProgress:
    """What one stage has committed of the batches from `start` to just before `end`."""

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
        """The progress once the task of this kind that was due is done."""
        forward = self.forward + (kind == "forward")
        backward = self.backward + (kind == "backward")
        return StageProgress(self.window, self.end, self.start, forward, backward)


def due_task(progress: StageProgress) -> tuple[Kind, int] | None:
    """The one task that the gates let through, None when all is done."""
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
