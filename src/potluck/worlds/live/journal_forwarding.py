"""Forwards a device's records to the coordinator's journal in bounded batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from potluck.journal import Instant, JournalRecord, Scalar, Span
from potluck.journal.journal_records import readable_record
from potluck.worlds.live.control_messages import JournalBatch

__all__ = ["JournalForwarder"]

_SEND_AFTER_S = 0.1
_BATCH_BYTES = 32 << 10
_BATCH_RECORDS = 1000
_MAX_PENDING = 10_000  # records; further ones are dropped
_MAX_SHOWN = 200  # characters of a record in a warning

_log = logging.getLogger("potluck")


class JournalForwarder:
    """Collects records and sends them in batches."""

    def __init__(self, send: Callable[[JournalBatch], None]) -> None:
        self._send = send
        self._pending: deque[tuple[Span | Instant | Scalar, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def add_record(self, record: JournalRecord) -> None:
        readable = readable_record(record)
        if readable is None:
            self.dropped += 1
            _log.warning("dropped a journal record whose time or value is not finite: %s", str(record)[:_MAX_SHOWN])
            return
        record = readable
        assert isinstance(record, Span | Instant | Scalar)
        size = len(msgspec.msgpack.encode(record))
        if size > _BATCH_BYTES or len(self._pending) >= _MAX_PENDING:
            self.dropped += 1
            _log.warning("dropped a journal record of %d bytes: too large, or too many are waiting", size)
            return
        self._pending.append((record, size))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SEND_AFTER_S, self.flush)

    def flush(self) -> None:
        """Send all pending records."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending:
            self._send(JournalBatch(self._next_batch()))

    def _next_batch(self) -> list[Span | Instant | Scalar]:
        batch: list[Span | Instant | Scalar] = []
        remaining = _BATCH_BYTES
        while self._pending and self._pending[0][1] <= remaining and len(batch) < _BATCH_RECORDS:
            record, size = self._pending.popleft()
            batch.append(record)
            remaining -= size
        return batch
