"""Runs work that starts an event loop also where one is active already, as in a notebook: in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["run_beside_event_loop", "run_coroutine"]

T = TypeVar("T")


def run_beside_event_loop(work: Callable[[], T], request_stop: Callable[[], None]) -> T:
    """The result of the work, here if no event loop is active in this thread.

    Interrupting a notebook's kernel requests a stop, and the work ends at a safe point.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1, thread_name_prefix="potluck") as pool:
        running = pool.submit(work)
        while not running.done():
            with contextlib.suppress(KeyboardInterrupt):
                running.exception()
                break
            request_stop()
        return running.result()


def run_coroutine(main: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; an interrupt cancels it, also in a notebook."""
    runner = asyncio.Runner()

    def run() -> T:
        with runner:
            return runner.run(main)

    def cancel() -> None:
        loop = runner.get_loop()
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

    try:
        return run_beside_event_loop(run, cancel)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
