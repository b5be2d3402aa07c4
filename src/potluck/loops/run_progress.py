"""How far a run is and how it ended; the progress is saved with every checkpoint."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from potluck.loops.message_limits import is_usable_loss
from potluck.loops.norm_bound import NormHistory
from potluck.loops.turn_record import TurnRecord
from potluck.model.lr_schedules import PlateauState

__all__ = ["BestModel", "PushOrder", "RunOutcome", "RunProgress", "diverged_outcome"]


class RunOutcome(NamedTuple):
    """How a run ended: "done", "failed" or "interrupted", and why."""

    status: str
    reason: str


def diverged_outcome(round: int, reason: str) -> RunOutcome:
    """How a run ends whose numbers are no longer finite; what all devices compute is not one device's fault."""
    advice = "lower the learning rate or clip gradients; `potluck resume` continues from the last checkpoint"
    return RunOutcome("failed", f"the training has diverged in round {round}: {reason} ({advice})")


class BestModel(msgspec.Struct, frozen=True):
    """The best evaluation so far, and the rounds before it."""

    metric: str
    value: float
    round: int


class PushOrder(msgspec.Struct, frozen=True):
    """How one device's latest update was cut and in which order it arrived; the other devices do the same."""

    device: str
    segments: tuple[tuple[int, int], ...]

    def segments_for(self, device: str) -> tuple[tuple[int, int], ...]:
        """What a device is told: nothing if it is the one that plans."""
        return () if device == self.device else self.segments


class RunProgress(msgspec.Struct):
    """Counters of the run so far. In a pipeline a round is a batch and a turn is a term."""

    round: int = 0
    version: int = 0
    turn: int = 0
    counts: dict[str, int] = {}  # how often each device was invited
    durations: tuple[float, ...] = ()  # of the latest turns, in seconds
    turn_durations: dict[str, list[float]] = {}  # of each device's latest turns, in seconds
    took_part_at: dict[str, float] = {}  # when each device was invited the last time, or lost after that
    left_out: dict[str, int] = {}  # devices that are connected but do not answer, and the turn that they hang in
    batches: dict[str, int] = {}  # of its own samples in each device's latest turn, where devices exchange samples
    pushed: dict[str, tuple[tuple[int, float], ...]] = {}  # how updates arrived, which devices are told next time
    push_order: PushOrder | None = None  # with duplex transfers
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_shared: int = 0  # samples between devices
    samples: int = 0
    updates: int = 0
    late: int = 0
    refused: int = 0
    clipped: int = 0  # updates that were scaled down
    score: dict[str, float] = {}
    scored_round: int = -1  # of the latest evaluation
    scores_finitely: bool = True  # in the latest evaluation
    best_model: BestModel | None = None  # by the metric that the job keeps the best model by
    plateaus: dict[str, PlateauState] = {}  # of schedules that follow a metric, by their setting
    norms: NormHistory = msgspec.field(default_factory=NormHistory)  # of recent updates
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

    def lr_drops(self, setting: str) -> tuple[int, ...]:
        """The rounds at which a schedule that follows a metric reduced the learning rate."""
        state = self.plateaus.get(setting)
        return () if state is None else tuple(state.drops)

    def add_update(self, turn: TurnRecord) -> None:
        """An update was merged."""
        self.merged.append((turn.device, turn.number))
        self.samples_now += turn.samples
        if is_usable_loss(turn.loss):
            self.loss_sum += turn.loss * turn.samples
            self.loss_samples += turn.samples

    def commit_round(self) -> None:
        """Close the open round."""
        self.round += 1
        self.version += 1
        self.samples += self.samples_now
        self.updates += len(self.merged)
        self.merged, self.samples_now, self.loss_sum, self.loss_samples = [], 0, 0.0, 0
