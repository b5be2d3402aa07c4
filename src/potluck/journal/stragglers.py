"""Finds the straggler of a run: the device whose update arrives last in most rounds, and what it was busy with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from potluck.journal.journal_records import Span
from potluck.units import format_percent

__all__ = ["StragglerTracker", "StragglerVerdict"]

_MIN_GAIN = 0.01  # fraction of the run; below it no device really waited
_ACTIVITY = {
    "pull": "its downlink (pulling the model)",
    "push": "its uplink (pushing updates)",
    "compute": "its processor (computing)",
    "stream": "its stream (waiting for data)",
}


class StragglerVerdict(NamedTuple):
    """The device that was last in most rounds, weighted by their length."""

    device: str
    rounds: int  # in which it was last
    total_rounds: int
    seconds: float  # duration of those rounds
    phase_s: Mapping[str, float]  # its seconds per phase in those rounds
    avoidable_s: float  # seconds saved if it had finished with the second-to-last device

    def describe_straggler(self, now: float) -> str:
        """What limited the run, in words."""
        phase, spent = max(self.phase_s.items(), key=lambda item: item[1], default=("", 0.0))
        fraction = min(spent / self.seconds, 1.0) if self.seconds > 0 else 0.0
        reason = f", above all because of {_ACTIVITY.get(phase, phase)}, {format_percent(fraction, 0)} of that time"
        busy = reason if fraction > 0 else ""
        shorter = format_percent(self.avoidable_s / now, 0)
        without = f"; had it been as early as the next, the run would have been {shorter} shorter"
        return f"{self.device} was waited for in {self.rounds} of {self.total_rounds} rounds{busy}{without}"


class TurnTimes:
    """Seconds per phase of one device in one round, and the end of its last push."""

    __slots__ = ("end", "phase_s")

    def __init__(self) -> None:
        self.phase_s: dict[str, float] = {}
        self.end = 0.0


class StragglerTotals(NamedTuple):
    """Totals of the rounds in which one device was last."""

    rounds: int = 0
    seconds: float = 0.0
    phase_s: Mapping[str, float] = {}
    avoidable_s: float = 0.0

    def add_round(self, seconds: float, phase_s: Mapping[str, float], gained: float) -> StragglerTotals:
        both = {name: self.phase_s.get(name, 0.0) + phase_s.get(name, 0.0) for name in {**self.phase_s, **phase_s}}
        return StragglerTotals(self.rounds + 1, self.seconds + seconds, both, self.avoidable_s + gained)


class StragglerTracker:
    """Fed with the phases of every turn and with closed rounds; counts how often each device was last.

    A live device's records arrive with a delay, so a round is evaluated when the next one closes.
    """

    def __init__(self) -> None:
        self._turns: dict[str, dict[Any, TurnTimes]] = {}  # the two latest rounds of each device
        self._closed: dict[str, StragglerTotals] = {}
        self._newest: Span | None = None
        self._rounds = 0

    def add_phase(self, span: Span) -> None:
        number, name = span.fields.get("round"), span.name
        turns = self._turns.setdefault(span.node, {})
        turn = turns.get(number)
        if turn is None:
            if len(turns) > 1:
                del turns[next(iter(turns))]
            turn = turns[number] = TurnTimes()
        turn.phase_s[name] = turn.phase_s.get(name, 0.0) + span.end - span.start
        if name == "push":
            turn.end = span.end

    def close_round(self, span: Span) -> None:
        self._closed = self._totals_with_newest()
        self._newest = span
        self._rounds += 1

    def worst_straggler(self, now: float) -> StragglerVerdict | None:
        """The straggler; None if no device was last in a third of the rounds, or if being last cost almost no time."""
        closed = self._totals_with_newest()
        if not closed:
            return None
        name, last = max(closed.items(), key=lambda item: (item[1].seconds, item[0]))
        if 3 * last.rounds < self._rounds or last.avoidable_s < _MIN_GAIN * now:
            return None
        return StragglerVerdict(name, last.rounds, self._rounds, last.seconds, last.phase_s, last.avoidable_s)

    def _totals_with_newest(self) -> dict[str, StragglerTotals]:
        """The totals including the newest round; a round with a single device has no straggler."""
        span = self._newest
        if span is None:
            return self._closed
        merged = [entry[0] for entry in span.fields.get("devices", ()) if isinstance(entry, list | tuple)]
        turns = [(self._turns.get(name, {}).get(span.fields.get("round")), name) for name in merged]
        done = sorted(((turn, name) for turn, name in turns if turn is not None), key=lambda one: (one[0].end, one[1]))
        if len(done) < 2:
            return self._closed
        (before, _), (last, name) = done[-2:]
        entry = self._closed.get(name, StragglerTotals()).add_round(
            span.end - span.start, last.phase_s, max(last.end - before.end, 0.0)
        )
        return {**self._closed, name: entry}
