"""What the run asks of a loop besides its rounds."""

from __future__ import annotations

from typing import Protocol

from potluck.loops.run_progress import RunOutcome, RunProgress

__all__ = ["RunPolicy"]


class RunPolicy(Protocol):
    """When to end, to measure and to save, and whom to show it."""

    def stop_outcome(self, books: RunProgress, now: float) -> RunOutcome | None:
        """Why the run is over, if it is."""

    def interrupt_outcome(self) -> RunOutcome | None:
        """Whether the user wants it to stop."""

    def evaluation_due(self, round: int) -> bool:
        """Whether the model is measured after so many rounds."""

    def checkpoint_due(self, round: int) -> bool:
        """Whether the loop shall come to rest after so many rounds, so that they can be saved."""

    def save_checkpoint(self, books: RunProgress, now: float) -> None:
        """Nothing is under way: the run can be taken up from here."""

    def report_progress(self, books: RunProgress, now: float) -> None:
        """A round was committed."""
