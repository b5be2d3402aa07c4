"""Buffers updates so that they are merged in the announced order, whatever order they arrive in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["MergeOrder"]

T = TypeVar("T")


class MergeOrder(Generic[T]):
    """Merges updates in the order of their announced turns: early ones wait, skipped ones are passed over.

    The update of a turn that was never announced is merged at once.
    """

    def __init__(self, merge: Callable[[T], None]) -> None:
        self._merge = merge
        self._expected: deque[int] = deque()
        self._open: set[int] = set()
        self._early: dict[int, T] = {}

    def expect_turn(self, turn: int) -> None:
        self._expected.append(turn)
        self._open.add(turn)

    def add_update(self, turn: int, update: T) -> None:
        if turn not in self._open:
            self._merge(update)
            return
        self._early[turn] = update
        self._merge_ready()

    def skip_turn(self, turn: int) -> None:
        self._open.discard(turn)
        self._merge_ready()

    def merge_remaining(self) -> None:
        """Merge what has arrived, and pass over the turns that are still open."""
        for turn in self._expected:
            if turn in self._early:
                self._merge(self._early.pop(turn))
        self._expected.clear()
        self._open.clear()

    def _merge_ready(self) -> None:
        while self._expected:
            turn = self._expected[0]
            if turn in self._early:
                self._merge(self._early.pop(turn))
            elif turn in self._open:
                return
            self._expected.popleft()
            self._open.discard(turn)
