"""A node's letters on the Zenoh network: puts them on their way from threads, hands what comes in to others.

A put may block while a link is full, so none happens on the event loop: small frames leave in order from one thread of
their own, chunks from a few more, so that one frozen peer does not hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import zenoh
from zenoh.handlers import Callback

from potluck.worlds.live import keys

__all__ = ["Post"]

_BULK_THREADS = 16
_CLOSING_S = 5.0

OnControl = Callable[[str, bytes], None]  # sender, frame
OnBulk = Callable[[str, bytes, bytes | None], None]  # sender, data, and the head of a chunk (None: an offer)

_log = logging.getLogger("potluck")


class Post:
    """Sends as `name`; receives what is addressed to it."""

    def __init__(self, session: zenoh.Session, era: str, name: str) -> None:
        self.session = session
        self.era = era
        self.name = name
        self._queue: queue.SimpleQueue[tuple[str, bytes] | Callable[[], None] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_BULK_THREADS, f"potluck-bulk-{name}")
        self._thread = threading.Thread(target=self._speak, name=f"potluck-control-{name}", daemon=True)
        self._thread.start()
        self._subscribers: list[zenoh.Subscriber[None]] = []
        self._closed = False

    def listen(self, on_control: OnControl, on_bulk: OnBulk) -> None:
        """Have everything handed over that is said to us; the calls come from Zenoh's threads."""

        def control(sample: zenoh.Sample) -> None:
            on_control(keys.route(str(sample.key_expr)).sender, sample.payload.to_bytes())

        def bulk(sample: zenoh.Sample) -> None:
            head = sample.attachment
            sender = keys.route(str(sample.key_expr)).sender
            on_bulk(sender, sample.payload.to_bytes(), None if head is None else head.to_bytes())

        for lane, handler in ((keys.CONTROL, control), (keys.BULK, bulk)):
            key = keys.inbox(self.era, self.name, lane)
            self._subscribers.append(self.session.declare_subscriber(key, Callback(handler, indirect=False)))

    def say(self, to: str, frame: bytes) -> None:
        """Put a small frame on its way; from any thread, never blocks."""
        self._queue.put((to, frame))

    def said(self) -> asyncio.Future[None]:
        """Done when everything said so far is on its way."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._queue.put(lambda: _call(loop, done))
        return done

    async def put(self, to: str, *chunks: Callable[[], tuple[bytes, bytes | None]]) -> None:
        """Make chunks and their heads, one after another, and put them on their way."""
        await asyncio.get_running_loop().run_in_executor(self._pool, self._put, to, chunks)

    def say_now(self, to: str, frame: bytes) -> None:
        """Put a small frame on its way from this very thread; may block."""
        self.session.put(
            keys.lane_between(self.era, self.name, to, keys.CONTROL),
            frame,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.INTERACTIVE_HIGH,
            express=True,
        )

    def close(self) -> None:
        """Say what is still to be said, and let the threads go; the session stays open."""
        if self._closed:
            return
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.undeclare()  # type: ignore[no-untyped-call]
        self._queue.put(None)
        self._thread.join(_CLOSING_S)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _put(self, to: str, chunks: Sequence[Callable[[], tuple[bytes, bytes | None]]]) -> None:
        key = keys.lane_between(self.era, self.name, to, keys.BULK)
        for chunk in chunks:
            data, head = chunk()
            self.session.put(
                key,
                data,
                attachment=head,
                congestion_control=zenoh.CongestionControl.BLOCK,
                priority=zenoh.Priority.DATA,
            )

    def _speak(self) -> None:
        while (what := self._queue.get()) is not None:
            if callable(what):
                what()
                continue
            try:
                self.say_now(*what)
            except zenoh.ZError as error:
                _log.debug("%s cannot say anything to %s: %s", self.name, what[0], error)


def _call(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(None))
