"""Forwards a device's records to the coordinator's journal in bounded batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from potluck.journal import Instant, JournalRecord, Scalar, Span
from potluck.worlds.live.control_messages import JournalBatch

__all__ = ["JournalForwarder", "is_valid_record"]

_SEND_AFTER_S = 0.1
_BATCH_BYTES = 32 << 10
_COORDINATOR_RECORDS = {"round", "partition", "committed"}  # only the coordinator may write these
_NUMERIC_FIELDS = ("round", "batch", "version", "bytes", "samples")  # fields that reports add up or compare
_MAX_PENDING = 10_000  # records; further ones are dropped

_log = logging.getLogger("potluck")


class JournalForwarder:
    """Collects records and sends them in batches."""

    def __init__(self, send: Callable[[JournalBatch], None]) -> None:
        self._send = send
        self._pending: deque[tuple[Span | Instant | Scalar, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def add_record(self, record: JournalRecord) -> None:
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
        while self._pending and self._pending[0][1] <= remaining:
            record, size = self._pending.popleft()
            batch.append(record)
            remaining -= size
        return batch


def is_valid_record(record: JournalRecord, sender: str) -> bool:
    """Whether a device may write this record: about itself, not one of the coordinator's, and with numeric fields."""
    if not isinstance(record, Span | Instant | Scalar) or record.node != sender or record.name in _COORDINATOR_RECORDS:
        return False
    fields = record.fields
    layers = fields.get("layers", (0,))
    has_layers = isinstance(layers, list | tuple) and len(layers) > 0
    return has_layers and all(type(fields.get(name, 0)) in (int, float) for name in _NUMERIC_FIELDS)
