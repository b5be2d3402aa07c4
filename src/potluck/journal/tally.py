"""Sums over a journal as it is written: who spent how long on what, and what held the run up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potluck.journal.records import Instant, Record, Span

__all__ = ["Tally"]

_PARTS = ("pull", "compute", "push")


class Tally:
    """Seconds per device and part of a round, bytes, and how often a device was lost or late."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = {}
        self._bytes: dict[str, float] = {}
        self._events: dict[str, dict[str, int]] = {}

    def add(self, record: Record) -> None:
        if isinstance(record, Span) and record.name in _PARTS:
            seconds = self._seconds.get(record.node)
            if seconds is None:
                seconds = self._seconds[record.node] = dict.fromkeys(_PARTS, 0.0)
            seconds[record.name] += record.end - record.start
            self._bytes[record.node] = self._bytes.get(record.node, 0.0) + record.fields.get("bytes", 0)
        elif isinstance(record, Instant):
            events = self._events.setdefault(record.node, {})
            events[record.name] = events.get(record.name, 0) + 1

    def read(self, path: Path) -> None:
        """Count what a journal holds already."""
        from potluck.journal import read

        for record in read(path):
            self.add(record)

    def devices(self, now: float) -> dict[str, dict[str, Any]]:
        """Each device's seconds by part, the rest of the time being waiting, its bytes and events."""
        return {
            name: {
                **{f"{part}_s": value for part, value in seconds.items()},
                "wait_s": max(now - sum(seconds.values()), 0.0),
                "bytes": self._bytes.get(name, 0.0),
                **self._events.get(name, {}),
            }
            for name, seconds in sorted(self._seconds.items())
        }

    def limit(self, now: float) -> str:
        """What held the run up, in one sentence: the device that waited least, and what it was busy with."""
        if not self._seconds or now <= 0:
            return "nothing was measured"
        name, seconds = max(self._seconds.items(), key=lambda item: (sum(item[1].values()), item[0]))
        part, spent = max(seconds.items(), key=lambda item: item[1])
        share = sum(seconds.values()) / now
        if share < 0.5:
            return f"no device was busy for more than {share:.0%} of the time; the rest was waiting for the coordinator"
        doing = {"pull": "its downlink (pulling the model)", "push": "its uplink (pushing updates)"}
        what = doing.get(part, "its processor (computing)")
        return f"{name} was busy {share:.0%} of the time, {spent / now:.0%} of it on {what}"
