"""Real functions done on the real cores while virtual time goes its own way.

A piece of work is handed in when it starts in virtual time and its result is taken when it is due. Background threads
do the earliest due first and run ahead by a bounded number of results, so memory does not grow with the fleet. Whoever
needs a result that nobody has begun does it himself, and whoever waits for one lends a hand with the next: with no
threads at all the pool is a lazy call. Work of a millisecond or two is not handed over at all: the threads would only
take the interpreter's lock from each other.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["ComputePool", "PendingResult"]

_WAITING, _RUNNING, _DONE, _DROPPED = range(4)
_WORTH_A_THREAD_S = 0.003


class PendingResult:
    """A result that is or will be there."""

    __slots__ = ("_error", "_function", "_pool", "_result", "_state")

    def __init__(self, pool: ComputePool, function: Callable[[], Any]) -> None:
        self._pool = pool
        self._function = function
        self._state = _WAITING
        self._result: Any = None
        self._error: BaseException | None = None

    def take_result(self) -> Any:
        """Take the result, once, waiting for it or doing it now."""
        self._pool._complete_result(self)
        if self._error is not None:
            raise self._error
        result, self._result = self._result, None  # the queue may hold the ticket a little longer
        return result

    def discard_result(self) -> None:
        """Nobody will ask for it any more."""
        self._pool._discard_pending(self)

    def _run_function(self) -> None:
        began = time.perf_counter()
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        self._pool._update_mean_s(time.perf_counter() - began)


class ComputePool:
    """`threads` background threads; `ahead` results may wait to be taken."""

    def __init__(self, threads: int = 0, ahead: int = 4, prepare: Callable[[], object] = lambda: None) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, PendingResult]] = []
        self._order = itertools.count()
        self._max_untaken = ahead
        self._untaken = 0
        self._closed = False
        self._prepare = prepare
        self._mean_s = _WORTH_A_THREAD_S  # how long work takes, lately
        self._threads = [
            threading.Thread(target=self._run_worker, name=f"potluck-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], Any], due: float) -> PendingResult:
        ticket = PendingResult(self, function)
        if self._threads and self._mean_s >= _WORTH_A_THREAD_S:
            with self._changed:
                heapq.heappush(self._queue, (due, next(self._order), ticket))
                self._changed.notify()
        return ticket

    def close(self) -> None:
        """Let running work end and forget the rest."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run_worker(self) -> None:
        self._prepare()
        while True:
            with self._changed:
                while not self._closed and (ticket := self._next_pending()) is None:
                    self._changed.wait()
                if self._closed:
                    return
            assert ticket is not None
            self._run_pending(ticket)

    def _complete_result(self, ticket: PendingResult) -> None:
        with self._changed:
            mine = ticket._state == _WAITING
            if mine:
                ticket._state = _DROPPED  # the threads shall leave it alone
        if mine:
            ticket._run_function()
            return
        while (other := self._wait_or_help(ticket)) is not None:
            self._run_pending(other)
        with self._changed:
            self._mark_taken(ticket)

    def _wait_or_help(self, ticket: PendingResult) -> PendingResult | None:
        """Wait until a ticket is done, or give back another one to do meanwhile."""
        with self._changed:
            while ticket._state == _RUNNING:
                other = self._next_pending()
                if other is not None:
                    return other
                self._changed.wait()
        return None

    def _next_pending(self) -> PendingResult | None:
        """The earliest due that nobody has begun, now begun; None if there is none or enough results wait."""
        while self._queue and self._untaken < self._max_untaken:
            ticket = heapq.heappop(self._queue)[2]
            if ticket._state == _WAITING:
                ticket._state = _RUNNING
                self._untaken += 1
                return ticket
        return None

    def _run_pending(self, ticket: PendingResult) -> None:
        ticket._run_function()
        with self._changed:
            if ticket._state == _DROPPED:
                self._untaken -= 1
            else:
                ticket._state = _DONE
            self._changed.notify_all()

    def _update_mean_s(self, seconds: float) -> None:
        self._mean_s += 0.2 * (seconds - self._mean_s)

    def _discard_pending(self, ticket: PendingResult) -> None:
        with self._changed:
            if ticket._state == _DONE:
                self._mark_taken(ticket)
            ticket._state = _DROPPED
            ticket._result = None

    def _mark_taken(self, ticket: PendingResult) -> None:
        assert ticket._state == _DONE, "a result is taken once"
        ticket._state = _DROPPED
        self._untaken -= 1
        self._changed.notify()
