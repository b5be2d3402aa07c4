"""How long nothing may move before a run gives up."""

from __future__ import annotations

__all__ = ["Patience"]


class Patience:
    """Begins anew whenever something was got done; a sign of life is worth it too, but once per device only.

    A device may die and return for ever, so its return alone must not keep a run alive.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = 0.0
        self._stirred: set[str] = set()

    @property
    def ends_at(self) -> float:
        return self._since + self._seconds

    def begin(self, now: float) -> None:
        """Something was got done."""
        self._since = now
        self._stirred.clear()

    def stir(self, device: str, now: float) -> None:
        """A device gave a sign of life."""
        if device not in self._stirred:
            self._stirred.add(device)
            self._since = now
