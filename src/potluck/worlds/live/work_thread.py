"""Runs a node's work on a thread of its own, one at a time.

It is a daemon thread: work that hangs (a user's transform, a call to a device driver) cannot be stopped, but it must
not keep the process from ending or from joining again.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["WorkThread"]

_Item = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class WorkThread:
    """Started with the first work; used from the event loop."""

    def __init__(self, name: str) -> None:
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_items, name=name, daemon=True)

    def submit(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """The future result of a function, which runs after all that were submitted before it."""
        future = asyncio.get_running_loop().create_future()
        self._items.put((function, future))
        if not self._thread.is_alive():
            self._thread.start()
        return future

    async def close(self, timeout_s: float) -> bool:
        """Let the thread end after its current work; whether it has within `timeout_s`."""
        if not self._thread.is_alive():
            return True
        self._items.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _run_items(self) -> None:
        while (item := self._items.get()) is not None:
            function, future = item
            if not future.cancelled():
                _run_function(function, future)
            del item, function, future  # a result must not live on until the next work


def _run_function(function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    result, error = None, None
    try:
        result = function()
    except BaseException as raised:
        error = raised
    with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(_resolve_future, future, result, error)


def _resolve_future(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
