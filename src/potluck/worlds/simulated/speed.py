"""How long a device takes for a stretch of work when its speed changes on the way."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

__all__ = ["Curve"]

Piece = tuple[float, float]


class Curve:
    """A speed over time that can say when a stretch of work ends; asked with times that never go back."""

    __slots__ = ("_ahead", "_pieces")

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces = pieces
        self._ahead = deque([next(pieces)])

    def level(self, now: float) -> float:
        """The speed at `now`; what lies before is forgotten."""
        while now >= self._ahead[0][0]:
            if len(self._ahead) == 1:
                self._ahead.append(next(self._pieces))
            self._ahead.popleft()
        return self._ahead[0][1]

    def finish(self, start: float, seconds: float) -> float:
        """When work that takes `seconds` at speed 1 ends if begun at `start`; never, at a speed of 0 for ever."""
        self.level(start)
        now = start
        for until, level in self._from_here():
            if level > 0 and now + seconds / level <= until:
                return now + seconds / level
            seconds -= (until - now) * level if level > 0 else 0.0
            now = until
        return math.inf

    def _from_here(self) -> Iterator[Piece]:
        index = 0
        while True:
            if index == len(self._ahead):
                self._ahead.append(next(self._pieces))
            yield self._ahead[index]
            if math.isinf(self._ahead[index][0]):
                return
            index += 1
