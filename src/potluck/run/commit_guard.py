"""What a run's store asks before it commits or saves; a run that only one coordinator can lead needs no answer."""

from __future__ import annotations

__all__ = ["CommitGuard"]


class CommitGuard:
    """Decides whether a run may commit, and is told what was saved. This one always lets it."""

    def check(self) -> None:
        """Raise if another coordinator leads the run."""

    def on_checkpoint(self, version: int) -> None:
        """A checkpoint was written."""
