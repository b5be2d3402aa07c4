"""Decides when a live run starts, by who has joined."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

__all__ = ["StartCondition"]


@dataclass(frozen=True, kw_only=True)
class StartCondition:
    """When a run starts: once all `devices` have joined, after `timeout_s`, or as soon as `start_now` returns True.

    A run that is resumed has `least`: it also starts once so many devices have joined, as soon as all `former` ones are
    back or nobody has joined for `settle_s`.
    """

    devices: Collection[str] = ()
    timeout_s: float = 60.0
    start_now: Callable[[], bool] = lambda: False
    former: Collection[str] = ()
    least: int | None = None
    settle_s: float = 0.0

    def is_met(self, joined: Collection[str], quiet_s: float) -> bool:
        """Whether enough devices have joined, the latest of them `quiet_s` ago."""
        if set(self.devices) <= set(joined):
            return True
        has_enough = self.least is not None and len(joined) >= self.least
        return has_enough and (quiet_s >= self.settle_s or (len(self.former) > 0 and set(self.former) <= set(joined)))
