"""How far a run is, how fast it goes and how long it may still take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from potluck.cli.figures import amount, percent, seconds

if TYPE_CHECKING:
    from potluck.run.keeper import Keeper

__all__ = ["Pace"]


class Pace:
    """Watches a run from the first round it is told of."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first_round = -1
        self._first_share = 0.0
        self.share = 0.0

    def see(self, keeper: Keeper, now: float) -> None:
        self.share = _share(keeper, now)
        if self._first_round < 0:
            self._began = time.perf_counter()
            self._first_round = keeper.books.round
            self._first_share = self.share

    def rounds_per_s(self, keeper: Keeper) -> float:
        elapsed = time.perf_counter() - self._began
        return (keeper.books.round - self._first_round) / elapsed if elapsed > 0 else 0.0

    def left_s(self) -> float | None:
        """Seconds until the budget is used up; a target may come sooner."""
        done = self.share - self._first_share
        if done <= 0:
            return None
        return (time.perf_counter() - self._began) * (1 - self.share) / done

    def line(self, keeper: Keeper, now: float) -> str:
        """Where the run is, in one line."""
        from potluck.run.ticket import is_live

        books, stop = keeper.books, keeper.job.stop
        number = f"{books.round}/{stop.rounds}" if stop.rounds else str(books.round)
        virtual = "" if is_live(keeper.folder) else " virtual"
        parts = [f"{keeper.job.recipe}: round {number}", f"{seconds(now)}{virtual}"]
        if "accuracy" in books.score:
            parts.append(f"accuracy {percent(books.score['accuracy'])}")
        parts.append(f"{amount(books.traffic)} sent")
        if (rate := self.rounds_per_s(keeper)) > 0:
            parts.append(f"{rate:.3g} rounds/s")
        if (left := self.left_s()) is not None:
            parts.append(f"{seconds(left)} left" + (" at most" if stop.accuracy is not None else ""))
        return ", ".join(parts)


def _share(keeper: Keeper, now: float) -> float:
    """The share of the budget that is used up, by whichever rule is nearest."""
    books, stop = keeper.books, keeper.job.stop
    used = [0.0]
    if stop.rounds:
        used.append(books.round / stop.rounds)
    if stop.time:
        used.append(now / stop.time)
    if stop.bytes:
        used.append(books.traffic / stop.bytes)
    return min(max(used), 1.0)
