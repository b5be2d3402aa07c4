"""What a coordinator writes into the journal: each record says in which round, and after how much work, it was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from potluck.journal import Instant, Scalar
from potluck.loops.node import Node
from potluck.loops.run_progress import RunProgress

__all__ = ["CoordinatorJournal"]


class CoordinatorJournal:
    """The journal of a run, beside its books."""

    def __init__(self, node: Node, books: RunProgress) -> None:
        self._node = node
        self._progress = books

    def record_event(self, device: str, name: str, **fields: Any) -> None:
        """Something happened to a device."""
        self._node.record(Instant(device, name, self._node.now(), {"round": self._progress.round, **fields}))

    def record_scalar(self, name: str, value: float) -> None:
        """A figure of the run as it stands; one that is not finite is left out, since JSON has no such number."""
        if not math.isfinite(value):
            return
        books = self._progress
        fields = {"round": books.round, "bytes": books.traffic_bytes, "samples": books.samples}
        self._node.record(Scalar(self._node.name, name, self._node.now(), value, fields))

    def record_evaluation(self, score: Mapping[str, float]) -> None:
        """The newest version was measured on held-out data."""
        self._progress.score = {name: value for name, value in score.items() if math.isfinite(value)}
        for name, value in self._progress.score.items():
            self.record_scalar(f"test_{name}", value)
