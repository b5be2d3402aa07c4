"""What the run asks of a loop besides its rounds."""

from __future__ import annotations

from typing import Protocol

from potluck.loops.progress import Books, Ending

__all__ = ["Rules"]


class Rules(Protocol):
    """When to end, to measure and to save, and whom to show it."""

    def ending(self, books: Books, now: float) -> Ending | None:
        """Why the run is over, if it is."""

    def interruption(self) -> Ending | None:
        """Whether the user wants it to stop."""

    def wants_score(self, round: int) -> bool:
        """Whether the model is measured after so many rounds."""

    def save_due(self, round: int) -> bool:
        """Whether the loop shall come to rest after so many rounds, so that they can be saved."""

    def save(self, books: Books, now: float) -> None:
        """Nothing is under way: the run can be taken up from here."""

    def watch(self, books: Books, now: float) -> None:
        """A round was committed."""
