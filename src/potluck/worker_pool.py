"""Worker processes that never outlive the process that started them, even if that one is killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["exit_when_closed", "worker_pool"]


@contextmanager
def worker_pool(
    processes: int, initializer: Callable[..., object] | None = None, initargs: tuple[Any, ...] = ()
) -> Iterator[ProcessPoolExecutor]:
    """A pool of spawned workers. Leaving the context with an exception stops them at once, whatever they compute."""
    context = get_context("spawn")
    watched, lifeline = context.Pipe(duplex=False)  # only this process holds the second end
    pool = ProcessPoolExecutor(
        processes, mp_context=context, initializer=_init_worker, initargs=(watched, initializer, initargs)
    )
    try:
        yield pool
        pool.shutdown(cancel_futures=True)
    finally:
        lifeline.close()
        pool.shutdown(cancel_futures=True)
        watched.close()


def exit_when_closed(watched: Connection) -> None:
    """End this process as soon as the other end of the pipe is closed, which the death of its owner does too."""
    threading.Thread(target=_exit_on_eof, args=(watched,), name="potluck-parent-watch", daemon=True).start()


def _exit_on_eof(watched: Connection) -> None:
    try:
        watched.recv_bytes()
    except (EOFError, OSError):
        os._exit(1)


def _init_worker(watched: Connection, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    exit_when_closed(watched)
    if initializer is not None:
        initializer(*initargs)
