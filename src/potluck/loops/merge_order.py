"""Updates in line: they may come in any order and are merged in the one that was announced."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["MergeOrder"]

T = TypeVar("T")


class MergeOrder(Generic[T]):
    """Passes updates on in the order in which they were expected; who comes early waits, who is skipped is passed over.

    Places that were never announced are passed on at once.
    """

    def __init__(self, merge: Callable[[T], None]) -> None:
        self._merge = merge
        self._expected: deque[int] = deque()
        self._open: set[int] = set()
        self._early: dict[int, T] = {}

    def expect_turn(self, place: int) -> None:
        self._expected.append(place)
        self._open.add(place)

    def add_update(self, place: int, update: T) -> None:
        if place not in self._open:
            self._merge(update)
            return
        self._early[place] = update
        self._merge_ready()

    def skip_turn(self, place: int) -> None:
        self._open.discard(place)
        self._merge_ready()

    def merge_remaining(self) -> None:
        """Whoever has not come by now is passed over."""
        for place in self._expected:
            if place in self._early:
                self._merge(self._early.pop(place))
        self._expected.clear()
        self._open.clear()

    def _merge_ready(self) -> None:
        while self._expected:
            place = self._expected[0]
            if place in self._early:
                self._merge(self._early.pop(place))
            elif place in self._open:
                return
            self._expected.popleft()
            self._open.discard(place)
