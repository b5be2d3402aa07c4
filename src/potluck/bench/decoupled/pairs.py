"""Two trainings at a time, each in a process of its own: while one piece is waited for, the next is under way."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

__all__ = ["Pairs"]

Work = tuple[Callable[..., Mapping[str, Any]], tuple[Any, ...]]


class Pairs:
    """Works off a list of calls in order, one ahead of whoever asks."""

    def __init__(self, work: Sequence[Work], processes: int | None = None) -> None:
        self._work = work
        self._processes = processes or min(2, os.cpu_count() or 1)
        self._pool: ProcessPoolExecutor | None = None
        self._begun: dict[int, Future[Mapping[str, Any]]] = {}

    def result(self, place: int) -> Mapping[str, Any]:
        """What came of this call; those right after it are begun as well."""
        for number in range(place, min(place + self._processes, len(self._work))):
            if number not in self._begun:
                function, arguments = self._work[number]
                self._begun[number] = self._opened().submit(function, *arguments)
        found = self._begun.pop(place).result()
        if place == len(self._work) - 1:
            self.close()
        return found

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _opened(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._processes, mp_context=multiprocessing.get_context("spawn"))
        return self._pool
