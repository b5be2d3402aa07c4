"""Decides whether moving to another layout pays for itself.

    gain   forecast seconds per batch, over a horizon of batches; it must exceed
    cost   forecast seconds of the move, or what earlier moves took, whichever is more, and
    noise  of the measured speeds, of which a better layout is a likely artefact

Where speeds vary, as on a busy machine, forecasts are checked against the measured period: a layout is not better
that promises what the present one does already, a move is not followed by another before its period is known, and
where a batch takes three times what computing and transfers explain, halving these saves a sixth.

A move that does not bring its promise is followed by a pause, which doubles each time. During the pause only a large
gain counts, so that a device that has really become slow is still left soon. A move that gives devices layers they
have never run is a guess: if it disappoints, there is no pause, because their times are known from then on. So every
such move teaches something, and layouts cannot alternate for ever.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

__all__ = ["RelayoutForecast", "RelayoutPolicy"]

_NOISE_FACTOR = 2.5  # standard errors that the gain must exceed
_FIRST_PAUSE, _LONGEST_PAUSE = 80, 640  # batches
_LEAST_GAIN = 0.01  # of the period; less is within what times vary
_LARGE_GAIN = 0.5  # of the period, which also counts during a pause
_JUDGED_AFTER = 12  # batches of a layout until its period is known
_GUESS_JUDGED_AFTER = 3  # likewise, if layers were given to devices that had never run them, and times hardly vary
_FILLING = 4  # of them, while the pipeline fills
_RECONSIDERED_AFTER = (5, 10, 20)  # batches after a change that was noticed while speeds vary
_STANDSTILLS = 5  # that are remembered


@dataclass(frozen=True)
class RelayoutForecast:
    """What a move is expected to bring and to cost."""

    old_period_s: float  # at the current speeds
    new_period_s: float
    migration_s: float
    uncertainty: float  # relative standard error of the speeds
    is_guess: bool = False  # whether devices get layers that they have never run

    def gain_s(self, measured_period_s: float) -> float:
        """The seconds saved per batch; where speeds vary, at most what the measured period leaves to be saved."""
        old_s = min(self.old_period_s, measured_period_s) if self.uncertainty else self.old_period_s
        return old_s - self.new_period_s

    def gain_fraction(self, measured_period_s: float) -> float:
        """The same as a fraction of the period, which is as measured if that is longer than forecast."""
        period_s = max(self.old_period_s, measured_period_s)
        return self.gain_s(measured_period_s) / period_s if period_s > 0 else 0.0


class RelayoutPolicy:
    """Compares what moves promised with what they brought."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon  # batches; 0 accepts any gain
        self._intervals: deque[float] = deque(maxlen=_JUDGED_AFTER + _FILLING)  # between batches of this layout
        self._batches = 0  # of this layout
        self._period_before = 0.0  # the latest move
        self._promise: RelayoutForecast | None = None  # of the latest move, until it is judged
        self._accepted: RelayoutForecast | None = None
        self._failures = 0
        self._paused_until = 0
        self._standstills: deque[float] = deque(maxlen=_STANDSTILLS)  # seconds that moves took
        self._reconsider_at: set[int] = set()

    # --- decision --------------------------------------------------------------------------------------------------

    def pays_off(self, forecast: RelayoutForecast, batch: int) -> bool:
        """Whether to move after this batch."""
        if forecast.uncertainty and self._promise is not None and len(self._intervals) < _JUDGED_AFTER // 2:
            return False
        measured_s = self._measured_period_s or forecast.old_period_s
        gain, fraction = forecast.gain_s(measured_s), forecast.gain_fraction(measured_s)
        if self._horizon and fraction < _LEAST_GAIN:
            return False
        cost = max([forecast.migration_s, *([statistics.median(self._standstills)] if self._standstills else [])])
        if not gain * (self._horizon or 1) > (cost if self._horizon else 0.0):
            return False
        if forecast.uncertainty and fraction <= _NOISE_FACTOR * forecast.uncertainty:
            return False
        is_paused = batch < self._paused_until or self._promise is not None
        if is_paused and fraction < _LARGE_GAIN:
            return False
        self._accepted = forecast
        return True

    def expect_more(self, batch: int) -> None:
        """A speed has changed, but speeds vary: decide again when more batches have shown whether it lasts."""
        self._reconsider_at.update(batch + after for after in _RECONSIDERED_AFTER)

    def is_due(self, batch: int) -> bool:
        """Whether to decide again after this batch."""
        due = {at for at in self._reconsider_at if at <= batch}
        self._reconsider_at -= due
        return bool(due)

    # --- outcome ---------------------------------------------------------------------------------------------------

    def begin_layout(self, moved: bool) -> None:
        """A layout begins; `moved` if because it paid off, not because a device was lost."""
        accepted, self._accepted, self._promise = self._accepted, None, None
        if moved and accepted is not None:
            self._period_before = self._measured_period_s or accepted.old_period_s
            self._promise = accepted
        self._intervals.clear()
        self._batches = 0

    def record_standstill(self, seconds: float) -> None:
        """A move kept the pipeline from committing a batch for this long."""
        self._standstills.append(seconds)

    def observe_batch(self, batch: int, seconds: float) -> None:
        """Learn the time from one committed batch to the next, and judge the latest move once it is known."""
        self._batches += 1
        if self._batches <= _FILLING:
            return
        self._intervals.append(seconds)
        promise = self._promise
        is_quiet_guess = promise is not None and promise.is_guess and not promise.uncertainty
        if promise is None or len(self._intervals) < (_GUESS_JUDGED_AFTER if is_quiet_guess else _JUDGED_AFTER):
            return
        self._promise = None
        if is_quiet_guess:
            self._reconsider_at.add(batch)
        elif self._measured_period_s > self._period_before * (1.0 - promise.gain_fraction(self._period_before) / 2):
            self._failures += 1
            pause = min(_FIRST_PAUSE * 2 ** (self._failures - 1), _LONGEST_PAUSE)
            self._paused_until = batch + pause
        else:
            self._failures = 0

    @property
    def _measured_period_s(self) -> float:
        """The median time between two batches of this layout; 0 until there are some."""
        return statistics.median(self._intervals) if self._intervals else 0.0
