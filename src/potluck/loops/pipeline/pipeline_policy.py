"""What the run asks of the pipeline loop besides its batches; one round is one batch."""

from __future__ import annotations

from typing import Protocol

from potluck.loops.run_policy import RunPolicy
from potluck.loops.run_progress import RunProgress

__all__ = ["PipelineRunPolicy"]


class PipelineRunPolicy(RunPolicy, Protocol):
    """The rules of a run, and where a stretch must end so that they can be kept to."""

    def next_drain_batch(self, batch: int) -> int:
        """The next batch after which the pipeline shall run dry: to be measured, saved or ended."""

    def evaluate_model(self, numbers: object) -> dict[str, float]:
        """Measure a version of the whole model."""

    def save_model(self, numbers: object, books: RunProgress, now: float) -> None:
        """The whole model as it is now; the run can be taken up from here."""
