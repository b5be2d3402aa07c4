"""How far a run is and how it ended; the progress is saved with every checkpoint."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from potluck.loops.turn_record import TurnRecord

__all__ = ["RunOutcome", "RunProgress"]


class RunOutcome(NamedTuple):
    """How a run ended: "done", "failed" or "interrupted", and why."""

    status: str
    reason: str


class RunProgress(msgspec.Struct):
    """Counters of the run so far. In a pipeline a round is a batch and a turn is a term."""

    round: int = 0
    version: int = 0
    turn: int = 0
    counts: dict[str, int] = {}  # how often each device was invited
    durations: tuple[float, ...] = ()  # of the latest turns, in seconds
    batches: dict[str, int] = {}  # samples in each device's latest turn, where devices exchange samples
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_shared: int = 0  # samples between devices
    samples: int = 0
    updates: int = 0
    late: int = 0
    refused: int = 0
    score: dict[str, float] = {}
    best: float = 0.0
    # of the open round
    merged: list[tuple[str, int]] = []
    samples_now: int = 0
    loss_sum: float = 0.0
    loss_samples: int = 0

    @property
    def traffic_bytes(self) -> int:
        return self.bytes_sent + self.bytes_received + self.bytes_shared

    @property
    def mean_loss(self) -> float:
        """The mean loss of the open round's updates; NaN if none reported a finite one."""
        return self.loss_sum / self.loss_samples if self.loss_samples else math.nan

    def add_update(self, turn: TurnRecord) -> None:
        """An update was merged."""
        self.merged.append((turn.device, turn.number))
        self.samples_now += turn.samples
        loss_sum = self.loss_sum + turn.loss * turn.samples
        if math.isfinite(loss_sum):
            self.loss_sum = loss_sum
            self.loss_samples += turn.samples

    def commit_round(self) -> None:
        """Close the open round."""
        self.round += 1
        self.version += 1
        self.samples += self.samples_now
        self.updates += len(self.merged)
        self.merged, self.samples_now, self.loss_sum, self.loss_samples = [], 0, 0.0, 0
