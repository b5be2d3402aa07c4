"""Barriers: when a round closes. Pure decisions from the updates that have arrived."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from potluck.settings import Part, doc

__all__ = ["AllBarrier", "Barrier", "BufferedBarrier", "QuorumBarrier", "RoundStatus", "late_after_s"]


class RoundStatus(msgspec.Struct, frozen=True):
    """What a barrier decides from."""

    now: float
    started: float
    arrived: int
    working: int  # devices whose update may still arrive
    durations: Sequence[float]  # how long the latest updates took, from invitation to arrival


class Barrier(Part, frozen=True, kw_only=True):
    """Decides when a round closes."""

    carries_over: ClassVar[bool] = False  # whether unfinished turns continue in the next round

    def should_close(self, status: RoundStatus) -> bool:
        raise NotImplementedError

    def next_check_at(self, status: RoundStatus) -> float:
        """When the round may close although nothing new has arrived."""
        return math.inf


class AllBarrier(Barrier, frozen=True, kw_only=True, tag="all"):
    """When every invited device that is still present has answered."""

    def should_close(self, status: RoundStatus) -> bool:
        return status.working == 0 and status.arrived > 0


class QuorumBarrier(Barrier, frozen=True, kw_only=True, tag="quorum"):
    """When a fraction of the devices has answered and the others are late."""

    share: Annotated[
        float, msgspec.Meta(gt=0.0, le=1.0), doc("Fraction of the invited devices that must have answered.")
    ] = 0.8
    tolerance: Annotated[
        float,
        msgspec.Meta(ge=0.0),
        doc("Late is after the median of recent turns plus this many median absolute deviations."),
    ] = 3.0

    def should_close(self, status: RoundStatus) -> bool:
        if status.arrived == 0:
            return False
        wanted = self.share * (status.arrived + status.working)
        enough = status.arrived >= math.ceil(wanted - 1e-9)  # 0.55 · 100 is a little above 55
        return status.working == 0 or (enough and status.now >= self._late_at(status))

    def next_check_at(self, status: RoundStatus) -> float:
        return self._late_at(status)

    def _late_at(self, status: RoundStatus) -> float:
        return status.started + late_after_s(status.durations, self.tolerance)


class BufferedBarrier(Barrier, frozen=True, kw_only=True, tag="buffered"):
    """When enough updates have arrived, of whatever version; others keep working (FedBuff)."""

    carries_over: ClassVar[bool] = True

    size: Annotated[int, msgspec.Meta(ge=1), doc("Updates per round.")] = 4

    def should_close(self, status: RoundStatus) -> bool:
        return status.arrived >= self.size or (status.working == 0 and status.arrived > 0)


def late_after_s(durations: Sequence[float], tolerance: float) -> float:
    """Median plus `tolerance` median absolute deviations; infinite with fewer than three durations."""
    if len(durations) < 3:
        return math.inf
    median = statistics.median(durations)
    spread = statistics.median(abs(duration - median) for duration in durations)
    return median + tolerance * max(spread, 0.05 * median)
