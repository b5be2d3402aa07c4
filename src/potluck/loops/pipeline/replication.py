"""Who keeps copies of whose layers, and how often: the kinds of replication as parts of a job.

Versions that are copied are *marks*: every stage marks the same ones and keeps them until newer ones are safe, so a
consistent version of the whole model can be put together again after a death.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

import msgspec

from potluck.settings import Part
from potluck.units import Bytes

__all__ = ["IncrementalReplication", "NoReplication", "PeriodicReplication", "Replication", "next_version_to_copy"]

_RAREST = 100

Count = Annotated[int, msgspec.Meta(ge=0)]


class Replication(Part, frozen=True, kw_only=True):
    """`replication`."""

    optimizer_state: bool = True  # whether copies hold what the optimizer remembers
    chunk: Bytes = Bytes(256_000)  # a copy travels in pieces of this size, each when the link is idle

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        """Every how many batches a copy goes to the next stage (0: never).

        A step takes so long to send, a whole version so long, and the link is idle for so long in every batch.
        """
        raise NotImplementedError

    def central_stride(self) -> int:
        """Every how many batches a copy goes to the coordinator; 0: never."""
        return 0

    @property
    def sends_steps(self) -> bool:
        """Whether a copy may be brought up to date by sending the step instead of the version."""
        return False


class NoReplication(Replication, frozen=True, kw_only=True, tag="none"):
    """Nobody but the owner; a death goes back to the latest checkpoint."""

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        return 0


class PeriodicReplication(Replication, frozen=True, kw_only=True, tag="periodic"):
    """Along the chain every `chain` batches, to the coordinator every `central`."""

    chain: Count = 100
    central: Count = 200

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        return self.chain

    def central_stride(self) -> int:
        return self.central


class IncrementalReplication(Replication, frozen=True, kw_only=True, tag="incremental"):
    """Along the chain after every batch, or every so many that the idle time of the links is enough."""

    central: Count = 0
    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.9  # of the links' idle time that copies may take

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        room = self.share * idle_s
        if step_s <= room:
            return 1
        return min(_RAREST, max(2, math.ceil(version_s / room))) if room > 0 else _RAREST

    def central_stride(self) -> int:
        return self.central

    @property
    def sends_steps(self) -> bool:
        return True


def next_version_to_copy(waiting: Iterable[int], stride: int) -> int | None:
    """Which of the marks that wait to be copied goes next: one that others who lag behind pick as well.

    That is the roundest number, the newest among equals. Who keeps up copies them all.
    """
    marks = [version for version in waiting if version % stride == 0] if stride else []
    return max(marks, key=lambda version: ((version // stride) & -(version // stride), version), default=None)
