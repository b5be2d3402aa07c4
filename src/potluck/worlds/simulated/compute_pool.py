"""Runs the real functions of simulated work on background threads, independently of virtual time.

A function is submitted when its work starts in virtual time, and its result is taken when the work is due. Threads
run the earliest due first and may be ahead by a bounded number of results, so memory does not grow with the fleet. A
caller that needs a result that has not been started computes it inline, and one that waits for a running function runs
others meanwhile: without threads the pool is a lazy call. Work of a millisecond or two is always run inline, because
threads would only compete for the interpreter's lock.
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
    """The result of a submitted function; take or discard it exactly once."""

    __slots__ = ("_error", "_function", "_pool", "_result", "_state")

    def __init__(self, pool: ComputePool, function: Callable[[], Any]) -> None:
        self._pool = pool
        self._function = function
        self._state = _WAITING
        self._result: Any = None
        self._error: BaseException | None = None

    def take_result(self) -> Any:
        """Return the result, waiting for it or computing it now."""
        self._pool._complete_result(self)
        if self._error is not None:
            raise self._error
        result, self._result = self._result, None  # the queue may reference this object a little longer
        return result

    def discard_result(self) -> None:
        """Give up the result; a function that has not started is never run."""
        self._pool._discard_pending(self)

    def _run_function(self) -> None:
        began = time.perf_counter()
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error
        self._pool._update_mean_s(time.perf_counter() - began)


class ComputePool:
    """Runs functions on `threads` background threads; at most `max_untaken` results wait to be taken."""

    def __init__(self, threads: int = 0, max_untaken: int = 4, prepare: Callable[[], object] = lambda: None) -> None:
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, PendingResult]] = []
        self._order = itertools.count()
        self._max_untaken = max_untaken
        self._untaken = 0
        self._closed = False
        self._prepare = prepare
        self._mean_s = _WORTH_A_THREAD_S  # moving average of how long a function takes
        self._threads = [
            threading.Thread(target=self._run_worker, name=f"potluck-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, function: Callable[[], Any], due: float) -> PendingResult:
        pending = PendingResult(self, function)
        if self._threads and self._mean_s >= _WORTH_A_THREAD_S:
            with self._changed:
                heapq.heappush(self._queue, (due, next(self._order), pending))
                self._changed.notify()
        return pending

    def close(self) -> None:
        """Wait for running functions and drop the rest."""
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
                while not self._closed and (pending := self._next_pending()) is None:
                    self._changed.wait()
                if self._closed:
                    return
            assert pending is not None
            self._run_pending(pending)

    def _complete_result(self, pending: PendingResult) -> None:
        with self._changed:
            run_inline = pending._state == _WAITING
            if run_inline:
                pending._state = _DROPPED  # no thread starts it now
        if run_inline:
            pending._run_function()
            return
        while (other := self._wait_or_help(pending)) is not None:
            self._run_pending(other)
        with self._changed:
            self._mark_taken(pending)

    def _wait_or_help(self, pending: PendingResult) -> PendingResult | None:
        """Wait until `pending` is done, or return another function to run meanwhile."""
        with self._changed:
            while pending._state == _RUNNING:
                other = self._next_pending()
                if other is not None:
                    return other
                self._changed.wait()
        return None

    def _next_pending(self) -> PendingResult | None:
        """Claim the earliest due function; None if there is none or enough results wait."""
        while self._queue and self._untaken < self._max_untaken:
            pending = heapq.heappop(self._queue)[2]
            if pending._state == _WAITING:
                pending._state = _RUNNING
                self._untaken += 1
                return pending
        return None

    def _run_pending(self, pending: PendingResult) -> None:
        pending._run_function()
        with self._changed:
            if pending._state == _DROPPED:
                self._untaken -= 1
            else:
                pending._state = _DONE
            self._changed.notify_all()

    def _update_mean_s(self, seconds: float) -> None:
        self._mean_s += 0.2 * (seconds - self._mean_s)

    def _discard_pending(self, pending: PendingResult) -> None:
        with self._changed:
            if pending._state == _DONE:
                self._mark_taken(pending)
            pending._state = _DROPPED
            pending._result = None

    def _mark_taken(self, pending: PendingResult) -> None:
        assert pending._state == _DONE, "a result can be taken only once"
        pending._state = _DROPPED
        self._untaken -= 1
        self._changed.notify()
