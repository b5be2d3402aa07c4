"""The error that ends a coordinator which no longer leads its run; devices are not told that the run is over."""

from __future__ import annotations

from potluck.errors import RunError

__all__ = ["LeadershipLostError"]


class LeadershipLostError(RunError):
    """This coordinator no longer leads its run, and has committed nothing since."""
