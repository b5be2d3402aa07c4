"""Sends and receives a node's bytes over a Zenoh session.

A put waits a moment while a link is full, so none happens on the event loop: control frames are sent in order by a
thread of their own, chunks by a few more. What still does not fit is dropped, and sent again by whoever misses an
answer. A put that blocked until the connection closes would also block the coordinator's router where it relays to a
peer whose link is down, and with it the heartbeats of all other devices.
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

from potluck.worlds.live import key_expressions
from potluck.worlds.live.callback_guard import guard_callback

__all__ = ["ZenohTransport"]

_BULK_THREADS = 16
_JOIN_TIMEOUT_S = 5.0

OnControl = Callable[[str, bytes], None]  # sender, frame
OnRefused = Callable[[str, str], None]  # sender, reason
OnBulk = Callable[[str, bytes, bytes | None], None]  # sender, data, chunk header (None: an offer)

_log = logging.getLogger("potluck")


class ZenohTransport:
    """Sends as `name`; receives what is addressed to it."""

    def __init__(self, session: zenoh.Session, era: str, name: str) -> None:
        self.session = session
        self.era = era
        self.name = name
        self._control_queue: queue.SimpleQueue[tuple[str, bytes] | Callable[[], None] | None] = queue.SimpleQueue()
        self._bulk_pool = ThreadPoolExecutor(_BULK_THREADS, f"potluck-bulk-{name}")
        self._control_thread = threading.Thread(
            target=self._run_control_thread, name=f"potluck-control-{name}", daemon=True
        )
        self._control_thread.start()
        self._subscribers: list[zenoh.Subscriber[None]] = []
        self._closed = False

    def subscribe_inbox(
        self, on_control: OnControl, on_bulk: OnBulk, refuse: OnRefused, accepts: Callable[[str, str], bool]
    ) -> None:
        """Pass what is sent to this node to the callbacks, which are called from Zenoh's threads.

        What `accepts` rejects by its sender is dropped before its payload is copied.
        """

        def forward_control(sample: zenoh.Sample) -> None:
            sender = _sender_of(sample)
            if sender is not None and accepts(sender, key_expressions.CONTROL):
                on_control(sender, sample.payload.to_bytes())

        def forward_bulk(sample: zenoh.Sample) -> None:
            sender = _sender_of(sample)
            if sender is not None and accepts(sender, key_expressions.BULK):
                header = sample.attachment
                on_bulk(sender, sample.payload.to_bytes(), None if header is None else header.to_bytes())

        def refuse_sample(sample: zenoh.Sample, reason: str) -> None:
            refuse(_sender_of(sample) or "", reason)

        for lane, handler in ((key_expressions.CONTROL, forward_control), (key_expressions.BULK, forward_bulk)):
            key = key_expressions.inbox_key(self.era, self.name, lane)
            callback = Callback(guard_callback(handler, refuse_sample), indirect=False)
            self._subscribers.append(self.session.declare_subscriber(key, callback))

    def send_control(self, to: str, frame: bytes) -> None:
        """Queue a control frame; may be called from any thread, never blocks."""
        self._control_queue.put((to, frame))

    def flush_control(self) -> asyncio.Future[None]:
        """A future that is done when all control frames queued so far have been sent."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._control_queue.put(lambda: _resolve_future(loop, done))
        return done

    async def put_chunks(self, to: str, *chunks: Callable[[], tuple[bytes, bytes | None]]) -> None:
        """Make chunks with their headers, one after another, and send them from a thread."""
        await asyncio.get_running_loop().run_in_executor(self._bulk_pool, self._put_blocking, to, chunks)

    def send_control_now(self, to: str, frame: bytes) -> None:
        """Send a control frame from the calling thread; waits a moment while the link is full, then drops it."""
        self.session.put(
            key_expressions.lane_key(self.era, self.name, to, key_expressions.CONTROL),
            frame,
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.INTERACTIVE_HIGH,
            express=True,
        )

    def close(self) -> None:
        """Send the queued control frames and stop the threads; the session stays open."""
        if self._closed:
            return
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.undeclare()  # type: ignore[no-untyped-call]
        self._control_queue.put(None)
        self._control_thread.join(_JOIN_TIMEOUT_S)
        self._bulk_pool.shutdown(wait=True, cancel_futures=True)

    def _put_blocking(self, to: str, chunks: Sequence[Callable[[], tuple[bytes, bytes | None]]]) -> None:
        key = key_expressions.lane_key(self.era, self.name, to, key_expressions.BULK)
        for chunk in chunks:
            data, header = chunk()
            self.session.put(
                key,
                data,
                attachment=header,
                congestion_control=zenoh.CongestionControl.DROP,
                priority=zenoh.Priority.DATA,
            )

    def _run_control_thread(self) -> None:
        while (item := self._control_queue.get()) is not None:
            if callable(item):
                item()
                continue
            try:
                self.send_control_now(*item)
            except zenoh.ZError as error:
                _log.debug("%s cannot send to %s: %s", self.name, item[0], error)


def _sender_of(sample: zenoh.Sample) -> str | None:
    """Who sent this; None if it was sent to a pattern of keys, which no node does."""
    route = key_expressions.parse_route(str(sample.key_expr))
    return None if route is None else route.sender


def _resolve_future(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed: nothing waits any more
        loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(None))
