"""What the run asks of the pipeline loop besides its batches; one round is one batch."""

from __future__ import annotations

from typing import Protocol

from potluck.loops.progress import Books
from potluck.loops.rules import Rules

__all__ = ["PipelineRules"]


class PipelineRules(Rules, Protocol):
    """The rules of a run, and where a stretch must end so that they can be kept to."""

    def next_stop(self, batch: int) -> int:
        """The next batch after which the pipeline shall run dry: to be measured, saved or ended."""

    def evaluate(self, numbers: object) -> dict[str, float]:
        """Measure a version of the whole model."""

    def keep(self, numbers: object, books: Books, now: float) -> None:
        """The whole model as it is now; the run can be taken up from here."""
