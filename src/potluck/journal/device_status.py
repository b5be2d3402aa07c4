"""Tracks each device's status from its latest records: when it was last seen, what it works on, how stale that is."""

from __future__ import annotations

from typing import Any

from potluck.journal.journal_records import Instant, JournalRecord, Scalar, Span

__all__ = ["DeviceStatus"]


class DeviceStatus:
    """Updated with every record; assignment and staleness stay empty where no record mentions them."""

    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}
        self._assignments: dict[str, str] = {}
        self._started_from: dict[str, int] = {}  # the round or version from which a device's latest work started
        self._stage_staleness: dict[str, int] = {}  # of pipeline stages
        self._newest_round = 0  # closed

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
            self._assign_stages(record.fields.get("order") or ())

    def last_seen(self, device: str) -> float | None:
        """When the device last did anything; None if it never has."""
        return self._last_seen.get(device)

    def assigned_work(self, device: str) -> str:
        """The device's pipeline stage, or the fraction of the model that it last trained; empty if unknown."""
        return self._assignments.get(device, "")

    def update_staleness(self, device: str) -> int | None:
        """How many versions the model has advanced since the device's latest update was started; None without one.

        For a pipeline stage: the versions between the forward pass and the step of its latest batch.
        """
        if device in self._stage_staleness:
            return self._stage_staleness[device]
        return max(self._newest_round - self._started_from[device], 0) if device in self._started_from else None

    def _update_last_seen(self, node: str, at: float) -> None:
        if at > self._last_seen.get(node, -1.0):
            self._last_seen[node] = at

    def _add_span(self, span: Span) -> None:
        name, fields = span.name, span.fields
        if name == "round":
            self._newest_round = max(self._newest_round, fields.get("round", 0))
        elif name == "push" and "round" in fields:
            self._started_from[span.node] = fields["round"]
        elif name == "backward" and "version" in fields:
            self._started_from[span.node] = fields["version"]
        elif name == "step" and "version" in fields and span.node in self._started_from:
            self._stage_staleness[span.node] = max(fields["version"] - 1 - self._started_from[span.node], 0)

    def _assign_stages(self, order: Any) -> None:
        """Devices that are no longer in the pipeline lose their assignment."""
        self._assignments = {device: f"stage {stage}/{len(order)}" for stage, device in enumerate(order, 1)}
