"""Checks the journal records that devices send, before the coordinator writes them.

A record must be about its sender, within the run's clock, and of bounded size; reports add up some of its fields, so
these must be plausible counts. A device may write only so many records a second. What is refused is counted, and said
once a minute for each device.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

from potluck.journal import Instant, JournalRecord, Scalar, Span

__all__ = ["DeviceRecords", "record_refusal"]

_COORDINATOR_RECORDS = {"round", "partition", "committed"}  # only the coordinator may write these
_COUNTS = {  # fields that reports add up or compare, and the most that they may be
    "round": 2**53, "batch": 2**53, "version": 2**53, "bytes": 2**50, "samples": 2**40,
}  # fmt: skip
_CLOCK_TOLERANCE_S = 5.0  # between a device's clock and the coordinator's
_MAX_NAME = 64  # characters
_MAX_TEXT = 1000  # characters of a field
_MAX_VALUES = 256  # in the fields of a record, nested ones included
_MAX_DEPTH = 4
_MAX_NUMBER = 2**63 - 1
_RECORDS_PER_S = 2000.0
_BURST = 40_000  # records that may arrive at once
_REPORT_EVERY_S = 60.0

_log = logging.getLogger("potluck")


class DeviceRecords:
    """Writes the records of all devices that may be written."""

    def __init__(self, write: Callable[[JournalRecord], None], now: Callable[[], float]) -> None:
        self._write = write
        self._now = now  # the run's time
        self._senders: dict[str, _Sender] = {}

    def add_batch(self, sender: str, records: Iterable[Any]) -> str | None:
        """Write a batch; returns why it is an offence, None if it is none.

        No honest device sends a record about another one or a time that is not a number: its own side drops those. What
        is only implausible, or too much, is refused without blaming the device for it.
        """
        state, now = self._senders.setdefault(sender, _Sender(self._now())), self._now()
        offence = None
        for record in records:
            reason = record_refusal(record, sender, now)
            if reason is None and not state.take_allowance(now):
                reason = f"it sends more than {_RECORDS_PER_S:.0f} records a second"
            if reason is None:
                self._write(record)
            else:
                state.count_refused(reason)
                offence = offence or _offence(record, sender)
        if state.is_report_due(now):
            self._report(sender, state, now)
        return offence

    def _report(self, sender: str, state: _Sender, now: float) -> None:
        count, reason = state.pop_refused(now)
        _log.warning("%d journal records of %s were refused: %s", count, sender, reason)
        self._write(Instant(sender, "records refused", now, {"count": count, "reason": reason}))


class _Sender:
    """What one device has sent: its allowance, and the refused records that were not yet reported."""

    def __init__(self, now: float) -> None:
        self._allowance = float(_BURST)
        self._filled_at = now
        self._refused = 0
        self._reason = ""
        self._reported_at = -math.inf

    def take_allowance(self, now: float) -> bool:
        """Whether one more record may be written now."""
        earned = max(now - self._filled_at, 0.0) * _RECORDS_PER_S
        self._allowance, self._filled_at = min(self._allowance + earned, _BURST), now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True

    def count_refused(self, reason: str) -> None:
        self._refused += 1
        self._reason = self._reason or reason

    def is_report_due(self, now: float) -> bool:
        return self._refused > 0 and now - self._reported_at >= _REPORT_EVERY_S

    def pop_refused(self, now: float) -> tuple[int, str]:
        """How many records were refused since the last report, and why the first of them was."""
        refused = self._refused, self._reason
        self._refused, self._reason, self._reported_at = 0, "", now
        return refused


def record_refusal(record: Any, sender: str, now: float) -> str | None:
    """Why a device may not write this record at the run's time `now`; None if it may."""
    if not isinstance(record, Span | Instant | Scalar):
        return "it is no span, instant or scalar"
    if record.node != sender:
        return f"it is about {record.node[:_MAX_NAME]!r}, not about its sender"
    if record.name in _COORDINATOR_RECORDS:
        return f"only the coordinator writes {record.name!r}"
    if not 0 < len(record.name) <= _MAX_NAME:
        return f"its name has {len(record.name)} characters"
    return _time_refusal(record, now) or _fields_refusal(record.fields)


def _time_refusal(record: Span | Instant | Scalar, now: float) -> str | None:
    start, end = (record.start, record.end) if isinstance(record, Span) else (record.at, record.at)
    if not -_CLOCK_TOLERANCE_S <= start <= end <= now + _CLOCK_TOLERANCE_S:  # false for NaN, too
        return f"its time, {start:.6g} to {end:.6g} s, is not within the run's, 0 to {now:.6g} s"
    if isinstance(record, Scalar) and not -_MAX_NUMBER <= record.value <= _MAX_NUMBER:
        return f"its value is {record.value}"
    return None


def _fields_refusal(fields: dict[str, Any]) -> str | None:
    for name, most in _COUNTS.items():
        count = fields.get(name, 0)
        if type(count) not in (int, float) or not 0 <= count <= most:
            return f"its field {name!r} is no count from 0 to {most}"
    layers = fields.get("layers", (0,))
    if not isinstance(layers, list | tuple) or not layers or not all(type(layer) is int for layer in layers):
        return "its field 'layers' is no list of layers"
    values = _count_values(fields, _MAX_DEPTH)
    return None if values <= _MAX_VALUES else "its fields are not plain, finite and small"


def _count_values(value: Any, depth: int) -> int:
    """How many values it consists of; more than any record may have if one of them may not be written."""
    if value is None or isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 1 if -_MAX_NUMBER <= value <= _MAX_NUMBER else _MAX_VALUES + 1
    if isinstance(value, str):
        return 1 if len(value) <= _MAX_TEXT else _MAX_VALUES + 1
    if isinstance(value, dict) and depth > 0 and all(isinstance(key, str) and len(key) <= _MAX_NAME for key in value):
        value = value.values()
    elif not isinstance(value, list | tuple) or depth == 0:
        return _MAX_VALUES + 1
    return len(value) + sum(_count_values(each, depth - 1) for each in value)


def _offence(record: Any, sender: str) -> str | None:
    """Why no honest device would send such a record; None where it may be wrong by mistake."""
    if not isinstance(record, Span | Instant | Scalar) or record.node != sender or record.name in _COORDINATOR_RECORDS:
        return "a journal record that is not its own to write"
    times = (record.start, record.end) if isinstance(record, Span) else (record.at,)
    return None if all(map(math.isfinite, times)) else "a journal record at a time that is not finite"
