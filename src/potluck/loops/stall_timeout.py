"""How long nothing may move before a run gives up."""

from __future__ import annotations

__all__ = ["StallTimeout"]


class StallTimeout:
    """Begins anew whenever something was got done; a sign of life is worth it too, but once per device only.

    A device may die and return for ever, so its return alone must not keep a run alive; nor must a batch that is done
    and lost again for ever.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = 0.0
        self._extended_by: set[str | int] = set()
        self._newest_batch = 0

    @property
    def expires_at(self) -> float:
        return self._since + self._seconds

    def restart_timer(self, now: float) -> None:
        """Something was got done."""
        self._since = now
        self._extended_by.clear()

    def record_batch(self, batch: int, now: float) -> None:
        """So far the run has come; where it was that far before, that is a sign of life."""
        if batch > self._newest_batch:
            self._newest_batch = batch
            self.restart_timer(now)
        else:
            self.extend_once(batch, now)

    def extend_once(self, who: str | int, now: float) -> None:
        """A device, or a batch that is done again, gave a sign of life."""
        if who not in self._extended_by:
            self._extended_by.add(who)
            self._since = now
