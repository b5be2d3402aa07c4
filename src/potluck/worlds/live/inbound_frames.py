"""Takes what arrives from Zenoh's threads to the event loop: bounded, limited per sender, handled in batches.

    Zenoh's threads                                             event loop
    SenderFilter.accepts ── blocked, or too fast: counted ─┐
      │ accepted                                           └──▶ on_excess, at most once a second and sender
      ▼
    InboundQueue   ── bounded per sender ──▶ batches, between which everything else has its turn ──▶ handle

A frame of an expelled sender costs one lookup: it is dropped by the sender in its key, before its payload is copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from potluck.loops.node import COORDINATOR
from potluck.worlds.live.key_expressions import BULK, CONTROL
from potluck.worlds.live.rate_limits import RateLimit, RateLimiter

__all__ = ["CONTROL_LIMIT", "FLOOD", "InboundQueue", "SenderFilter"]

CONTROL_LIMIT = RateLimit(per_s=1_000.0, burst=3_000.0)  # small frames of a device that takes part
BULK_LIMIT = RateLimit(per_s=5_000.0, burst=10_000.0)  # its offers and chunks
_STRANGER_LIMIT = RateLimit(per_s=20.0, burst=40.0)  # of one that does not
FLOOD = 1_000  # messages dropped within a second that no honest device causes
_EXCESS_INTERVAL_S = 1.0
_BATCH_FRAMES, _BATCH_S = 256, 0.005
_MAX_QUEUED, _MAX_QUEUED_BYTES = 4_096, 8 << 20  # per sender


class SenderFilter:
    """Decides by its sender whether a frame is looked at; used on Zenoh's threads."""

    def __init__(self, is_member: Callable[[str], bool], on_excess: Callable[[str, int], None]) -> None:
        self._is_member = is_member
        self._on_excess = on_excess
        self._lock = threading.Lock()
        self._limiters = {CONTROL: RateLimiter(CONTROL_LIMIT), BULK: RateLimiter(BULK_LIMIT)}
        self._strangers = RateLimiter(_STRANGER_LIMIT)
        self._blocked_until: dict[str, float] = {}
        self._dropped: Counter[str] = Counter()  # since the last report
        self._reported_at: dict[str, float] = {}

    def accepts(self, sender: str, lane: str) -> bool:
        """Whether to handle a frame of this sender; the coordinator's are always handled."""
        if sender == COORDINATOR:
            return True
        now = time.monotonic()
        with self._lock:
            blocked = self._blocked_until.get(sender, 0.0) > now
            if not blocked and (self._limiters[lane] if self._is_member(sender) else self._strangers).take(sender, now):
                return True
            self._dropped[sender] += 1
            if now - self._reported_at.get(sender, 0.0) < _EXCESS_INTERVAL_S:
                return False
            if len(self._reported_at) > self._strangers.max_sources:
                self._reported_at.clear()
                self._dropped.clear()
            self._reported_at[sender] = now
            count = self._dropped.pop(sender, 1)
        self._on_excess(sender, count)
        return False

    def block(self, sender: str, seconds: float) -> None:
        """Drop everything of a sender for a while."""
        self._blocked_until[sender] = time.monotonic() + seconds

    def is_blocked(self, sender: str) -> bool:
        return self._blocked_until.get(sender, 0.0) > time.monotonic()

    def unblock(self, sender: str) -> None:
        self._blocked_until.pop(sender, None)


class InboundQueue:
    """What Zenoh's threads want done on the event loop, in their order: control frames and complete messages."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._actions: deque[tuple[str, int, Callable[[], object]]] = deque()  # sender, bytes
        self._queued: Counter[str] = Counter()
        self._queued_bytes: Counter[str] = Counter()
        self._scheduled = False

    def put_frame(self, sender: str, frame: bytes, handle: Callable[[str, bytes], object]) -> None:
        """Add a frame, or drop it if too many of this sender wait already; called from any thread."""
        with self._lock:
            if self._queued[sender] >= _MAX_QUEUED or self._queued_bytes[sender] + len(frame) > _MAX_QUEUED_BYTES:
                return
        self.put(sender, partial(handle, sender, frame), len(frame))

    def put(self, sender: str, action: Callable[[], object], nbytes: int = 0) -> None:
        """Add what must not be dropped; called from any thread."""
        with self._lock:
            self._actions.append((sender, nbytes, action))
            self._queued[sender] += 1
            self._queued_bytes[sender] += nbytes
            is_scheduled, self._scheduled = self._scheduled, True
        if not is_scheduled:
            with contextlib.suppress(RuntimeError):  # the event loop is closed: the run has ended
                self._loop.call_soon_threadsafe(self._handle_batch)

    def drop_sender(self, sender: str) -> None:
        """Drop everything of a sender that waits."""
        with self._lock:
            self._actions = deque(item for item in self._actions if item[0] != sender)
            del self._queued[sender], self._queued_bytes[sender]

    def _handle_batch(self) -> None:
        until = time.monotonic() + _BATCH_S
        try:
            for _ in range(_BATCH_FRAMES):
                action = self._next_action()
                if action is None:
                    return
                action()
                if time.monotonic() > until:
                    break
        finally:
            if self._scheduled:
                self._loop.call_soon(self._handle_batch)

    def _next_action(self) -> Callable[[], object] | None:
        with self._lock:
            if not self._actions:
                self._scheduled = False
                return None
            sender, nbytes, action = self._actions.popleft()
            self._queued[sender] -= 1
            self._queued_bytes[sender] -= nbytes
            if not self._queued[sender]:
                del self._queued[sender], self._queued_bytes[sender]
        return action
