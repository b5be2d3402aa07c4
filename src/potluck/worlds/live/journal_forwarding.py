"""A device's records on their way to the coordinator's journal: a few at a time, never without bound."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from potluck.journal import Instant, JournalRecord, Scalar, Span
from potluck.worlds.live.control_messages import JournalBatch

__all__ = ["JournalForwarder", "is_valid_record"]

_SHIP_AFTER_S = 0.1
_BATCH_BYTES = 32 << 10
_COORDINATORS = {"round", "partition", "committed"}  # records that count for the whole run
_FIGURES = ("round", "batch", "version", "bytes", "samples")  # fields that are added up or compared
_MOST = 10_000  # records that may wait; the oldest are dropped

_log = logging.getLogger("potluck")


class JournalForwarder:
    """Collects records and sends them off in batches."""

    def __init__(self, send: Callable[[JournalBatch], None]) -> None:
        self._send = send
        self._pending: deque[tuple[Span | Instant | Scalar, int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0

    def add_record(self, record: JournalRecord) -> None:
        assert isinstance(record, Span | Instant | Scalar)
        size = len(msgspec.msgpack.encode(record))
        if size > _BATCH_BYTES or len(self._pending) >= _MOST:
            self.dropped += 1
            _log.warning("a record of %d bytes did not fit and was dropped", size)
            return
        self._pending.append((record, size))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SHIP_AFTER_S, self.flush)

    def flush(self) -> None:
        """Send off all that is waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pending:
            self._send(JournalBatch(self._next_batch()))

    def _next_batch(self) -> list[Span | Instant | Scalar]:
        batch: list[Span | Instant | Scalar] = []
        room = _BATCH_BYTES
        while self._pending and self._pending[0][1] <= room:
            record, size = self._pending.popleft()
            batch.append(record)
            room -= size
        return batch


def is_valid_record(record: JournalRecord, sender: str) -> bool:
    """Whether a record is about its sender, none of the coordinator's own, with numbers where they are counted."""
    if not isinstance(record, Span | Instant | Scalar) or record.node != sender or record.name in _COORDINATORS:
        return False
    fields = record.fields
    layers = fields.get("layers", (0,))
    whole = isinstance(layers, list | tuple) and len(layers) > 0
    return whole and all(type(fields.get(name, 0)) in (int, float) for name in _FIGURES)
