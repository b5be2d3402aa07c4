"""Where each device stands by its latest records: when it was heard of, which part it has, how stale its work is."""

from __future__ import annotations

from typing import Any

from potluck.journal.journal_records import Instant, JournalRecord, Scalar, Span

__all__ = ["DeviceStatus"]


class DeviceStatus:
    """Told of every record; a run whose records say nothing of a part or of staleness has none."""

    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}
        self._assignments: dict[str, str] = {}
        self._started_from: dict[str, int] = {}  # the round or version that a device's latest work began from
        self._stage_staleness: dict[str, int] = {}  # of the stages of a pipeline
        self._newest = 0  # round that was closed

    def add_record(self, record: JournalRecord) -> None:
        if isinstance(record, Span):
            self._update_last_seen(record.node, record.end)
            self._add_span(record)
        elif isinstance(record, Scalar):
            self._update_last_seen(record.node, record.at)
            if record.name == "share":
                self._assignments[record.node] = f"{100 * record.value:.0f} %"
        elif isinstance(record, Instant) and record.name == "joined":
            self._update_last_seen(record.node, record.at)
        elif isinstance(record, Instant) and record.name == "partition":
            self._assign_stages(record.fields.get("order", ()))

    def last_seen(self, device: str) -> float | None:
        """When it last did anything; None if it never has."""
        return self._last_seen.get(device)

    def assigned_work(self, device: str) -> str:
        """Its stage of a pipeline, or the share of the model that it last trained; empty where nothing says so."""
        return self._assignments.get(device, "")

    def update_staleness(self, device: str) -> int | None:
        """By how many versions the model has moved on since its latest update was begun; None if it made none.

        For a stage of a pipeline: how many had come between the forward and the step of its latest batch.
        """
        if device in self._stage_staleness:
            return self._stage_staleness[device]
        return max(self._newest - self._started_from[device], 0) if device in self._started_from else None

    def _update_last_seen(self, node: str, at: float) -> None:
        if at > self._last_seen.get(node, -1.0):
            self._last_seen[node] = at

    def _add_span(self, span: Span) -> None:
        name, fields = span.name, span.fields
        if name == "round":
            self._newest = max(self._newest, fields.get("round", 0))
        elif name == "push" and "round" in fields:
            self._started_from[span.node] = fields["round"]
        elif name == "backward" and "version" in fields:
            self._started_from[span.node] = fields["version"]
        elif name == "step" and "version" in fields and span.node in self._started_from:
            self._stage_staleness[span.node] = max(fields["version"] - 1 - self._started_from[span.node], 0)

    def _assign_stages(self, order: Any) -> None:
        """Who is not in the line any more has no part."""
        self._assignments = {device: f"stage {place}/{len(order)}" for place, device in enumerate(order, 1)}
