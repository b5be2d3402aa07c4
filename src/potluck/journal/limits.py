"""Who a run waited for, round by round: the device whose update came last, and what it was busy with meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

from potluck.journal.records import Span

__all__ = ["Blame", "Verdict"]

_LEAST_GAIN = 0.01  # of the run; below that nobody really waited
_DOING = {
    "pull": "its downlink (pulling the model)",
    "push": "its uplink (pushing updates)",
    "compute": "its processor (computing)",
    "stream": "its stream (waiting for data)",
}


class Verdict(NamedTuple):
    """The device that was last most often, weighed by the length of the rounds."""

    device: str
    rounds: int  # that it closed
    of: int
    seconds: float  # that those rounds took
    parts: dict[str, float]  # its seconds in them
    gained: float  # had it been as early as the one before it, by how many seconds they would have been shorter

    def sentence(self, now: float) -> str:
        """What held the run up, in words."""
        part, spent = max(self.parts.items(), key=lambda item: item[1], default=("", 0.0))
        share = min(spent / self.seconds, 1.0) if self.seconds > 0 else 0.0
        busy = f", above all because of {_DOING.get(part, part)}, {share:.0%} of that time" if share > 0 else ""
        without = f"; had it been as early as the next, the run would have been {self.gained / now:.0%} shorter"
        return f"{self.device} was waited for in {self.rounds} of {self.of} rounds{busy}{without}"


class Turn:
    """What a device has done in the round that it is in."""

    __slots__ = ("end", "parts", "round")

    def __init__(self, number: Any) -> None:
        self.round = number
        self.parts: dict[str, float] = {}  # seconds
        self.end = 0.0  # of its last push


class Blame:
    """Told of the parts of every turn and of the rounds that took them in; knows who was last how often."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._closed: dict[str, tuple[int, float, dict[str, float], float]] = {}
        self._rounds = 0

    def add_part(self, span: Span) -> None:
        number, name, turn = span.fields.get("round"), span.name, self._turns.get(span.node)
        if turn is None or turn.round != number:
            turn = self._turns[span.node] = Turn(number)
        turn.parts[name] = turn.parts.get(name, 0.0) + span.end - span.start
        if name == "push":
            turn.end = span.end

    def close_round(self, span: Span) -> None:
        """A round ended; those who finished in it are compared. A single device waits for nobody."""
        number = span.fields.get("round")
        merged = [entry[0] for entry in span.fields.get("devices", ()) if isinstance(entry, list | tuple)]
        turns = [(name, self._turns[name]) for name in merged if name in self._turns]
        ends = [(turn.end, name) for name, turn in turns if turn.round == number]
        self._rounds += 1
        if len(ends) < 2:
            return
        (before, _), (last, name) = sorted(ends)[-2:]
        rounds, seconds, parts, gained = self._closed.get(name, (0, 0.0, {}, 0.0))
        for part, spent in self._turns[name].parts.items():
            parts[part] = parts.get(part, 0.0) + spent
        self._closed[name] = (rounds + 1, seconds + span.end - span.start, parts, gained + max(last - before, 0.0))

    def verdict(self, now: float) -> Verdict | None:
        """None where nobody was last in a third of the rounds, or where being last held nobody up."""
        if not self._closed:
            return None
        name, (rounds, seconds, parts, gained) = max(self._closed.items(), key=lambda item: (item[1][1], item[0]))
        if 3 * rounds < self._rounds or gained < _LEAST_GAIN * now:
            return None
        return Verdict(name, rounds, self._rounds, seconds, parts, gained)
