"""How far a run is, how fast it goes and how long it may still take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from potluck.cli.number_format import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from potluck.run.run_store import RunStore

__all__ = ["ProgressEstimate"]


class ProgressEstimate:
    """Watches a run from the first round it is told of."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first_round = -1
        self._first_fraction = 0.0
        self.budget_fraction = 0.0

    def observe_round(self, keeper: RunStore, now: float) -> None:
        self.budget_fraction = _budget_fraction(keeper, now)
        if self._first_round < 0:
            self._began = time.perf_counter()
            self._first_round = keeper.progress.round
            self._first_fraction = self.budget_fraction

    def rounds_per_s(self, keeper: RunStore) -> float:
        elapsed = time.perf_counter() - self._began
        return (keeper.progress.round - self._first_round) / elapsed if elapsed > 0 else 0.0

    def remaining_s(self) -> float | None:
        """Seconds until the budget is used up; a target may come sooner."""
        done = self.budget_fraction - self._first_fraction
        if done <= 0:
            return None
        return (time.perf_counter() - self._began) * (1 - self.budget_fraction) / done

    def status_line(self, keeper: RunStore, now: float) -> str:
        """Where the run is, in one line."""
        from potluck.run.live_status import is_live_run

        books, stop = keeper.progress, keeper.job.stop
        number = f"{books.round}/{stop.rounds}" if stop.rounds else str(books.round)
        virtual = "" if is_live_run(keeper.folder) else " virtual"
        parts = [f"{keeper.job.recipe}: round {number}", f"{format_seconds(now)}{virtual}"]
        if "accuracy" in books.score:
            parts.append(f"accuracy {format_percent(books.score['accuracy'])}")
        parts.append(f"{format_bytes(books.traffic_bytes)} sent")
        if (rate := self.rounds_per_s(keeper)) > 0:
            parts.append(f"{rate:.3g} rounds/s")
        if (left := self.remaining_s()) is not None:
            parts.append(f"{format_seconds(left)} left" + (" at most" if stop.accuracy is not None else ""))
        return ", ".join(parts)


def _budget_fraction(keeper: RunStore, now: float) -> float:
    """The share of the budget that is used up, by whichever rule is nearest."""
    books, stop = keeper.progress, keeper.job.stop
    used = [0.0]
    if stop.rounds:
        used.append(books.round / stop.rounds)
    if stop.time:
        used.append(now / stop.time)
    if stop.bytes:
        used.append(books.traffic_bytes / stop.bytes)
    return min(max(used), 1.0)
