"""Who a run waited for, round by round: the device whose update came last, and what it was busy with meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from potluck.journal.journal_records import Span

__all__ = ["StragglerTracker", "StragglerVerdict"]

_LEAST_GAIN = 0.01  # of the run; below that nobody really waited
_DOING = {
    "pull": "its downlink (pulling the model)",
    "push": "its uplink (pushing updates)",
    "compute": "its processor (computing)",
    "stream": "its stream (waiting for data)",
}


class StragglerVerdict(NamedTuple):
    """The device that was last most often, weighed by the length of the rounds."""

    device: str
    rounds: int  # that it closed
    total_rounds: int
    seconds: float  # that those rounds took
    phase_s: Mapping[str, float]  # its seconds in them
    avoidable_s: float  # had it been as early as the one before it, by how many seconds they would have been shorter

    def describe_straggler(self, now: float) -> str:
        """What held the run up, in words."""
        part, spent = max(self.phase_s.items(), key=lambda item: item[1], default=("", 0.0))
        share = min(spent / self.seconds, 1.0) if self.seconds > 0 else 0.0
        busy = f", above all because of {_DOING.get(part, part)}, {share:.0%} of that time" if share > 0 else ""
        without = f"; had it been as early as the next, the run would have been {self.avoidable_s / now:.0%} shorter"
        return f"{self.device} was waited for in {self.rounds} of {self.total_rounds} rounds{busy}{without}"


class TurnTimes:
    """What a device did in one round."""

    __slots__ = ("end", "parts")

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}  # seconds
        self.end = 0.0  # of its last push


class StragglerTotals(NamedTuple):
    """The rounds that one device was the last in, added up."""

    rounds: int = 0
    seconds: float = 0.0
    phase_s: Mapping[str, float] = {}
    avoidable_s: float = 0.0

    def add_round(self, seconds: float, parts: Mapping[str, float], gained: float) -> StragglerTotals:
        both = {part: self.phase_s.get(part, 0.0) + parts.get(part, 0.0) for part in {**self.phase_s, **parts}}
        return StragglerTotals(self.rounds + 1, self.seconds + seconds, both, self.avoidable_s + gained)


class StragglerTracker:
    """Told of the parts of every turn and of the rounds that took them in; knows who was last how often.

    A live device's records come a little later than what they tell of, so a round is judged when the next one closes.
    """

    def __init__(self) -> None:
        self._turns: dict[str, dict[Any, TurnTimes]] = {}  # of the two latest rounds of each device
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
        turn.parts[name] = turn.parts.get(name, 0.0) + span.end - span.start
        if name == "push":
            turn.end = span.end

    def close_round(self, span: Span) -> None:
        self._closed = self._totals_with_newest()
        self._newest = span
        self._rounds += 1

    def worst_straggler(self, now: float) -> StragglerVerdict | None:
        """None where nobody was last in a third of the rounds, or where being last held nobody up."""
        closed = self._totals_with_newest()
        if not closed:
            return None
        name, last = max(closed.items(), key=lambda item: (item[1].seconds, item[0]))
        if 3 * last.rounds < self._rounds or last.avoidable_s < _LEAST_GAIN * now:
            return None
        return StragglerVerdict(name, last.rounds, self._rounds, last.seconds, last.phase_s, last.avoidable_s)

    def _totals_with_newest(self) -> dict[str, StragglerTotals]:
        """With the newest round, those who finished in it compared. A single device waits for nobody."""
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
            span.end - span.start, last.parts, max(last.end - before.end, 0.0)
        )
        return {**self._closed, name: entry}
