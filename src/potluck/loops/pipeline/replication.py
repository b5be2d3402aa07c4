"""How often the layers of a stage are copied to another device: the kinds of replication as parts of a job.

Every stage copies the same versions and keeps them until newer ones are secure, so that a consistent version of the
whole model can be restored after a death.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from potluck.settings import Part, doc
from potluck.units import Bytes

__all__ = ["IncrementalReplication", "NoReplication", "PeriodicReplication", "Replication", "next_version_to_copy"]

_MAX_STRIDE = 100  # batches

Count = Annotated[int, msgspec.Meta(ge=0)]


class Replication(Part, frozen=True, kw_only=True):
    """Where copies of a stage's layers are stored, and how often."""

    optimizer_state: Annotated[bool, doc("Copies include the optimizer's state.")] = True
    chunk: Annotated[Bytes, doc("Size of the chunks in which a copy is sent, each while the link is idle.")] = Bytes(
        256_000
    )

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        """Every how many batches a copy goes to the replica holder (0: never).

        Given are the seconds to send a step, to send a whole version, and for which the link is idle in every batch.
        """
        raise NotImplementedError

    def central_stride(self) -> int:
        """Every how many batches a copy goes to the coordinator; 0: never."""
        return 0

    @property
    def sends_steps(self) -> bool:
        """Whether a copy may be updated by sending the step instead of the version."""
        return False

    @property
    def max_lag(self) -> int:
        """How many batches a stage may be ahead of its copy; 0: any number."""
        return 0

    def limit_stride(self, stride: int) -> int:
        """The batches between two copies to another device, no more than let one be confirmed in time."""
        return min(stride, max(1, self.max_lag // 2)) if self.max_lag else stride

    def lag_limit(self, stride: int, whole_versions: bool) -> int:
        """How many batches a stage may be ahead of the newest copy of one holder; 0: any number."""
        return self.max_lag + (stride - 1 if whole_versions else 0) if self.max_lag else 0


class NoReplication(Replication, frozen=True, kw_only=True, tag="none"):
    """No copies; after a loss the pipeline returns to the latest checkpoint."""

    def unused_keys(self) -> Mapping[str, str]:
        return dict.fromkeys(("optimizer_state", "chunk"), "without copies")

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        return 0


class PeriodicReplication(Replication, frozen=True, kw_only=True, tag="periodic"):
    """Copies at fixed intervals."""

    chain: Annotated[Count, doc("Batches between two copies to the next stage; 0 for never.")] = 100
    central: Annotated[Count, doc("Batches between two copies to the coordinator; 0 for never.")] = 200

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.chain or self.central else dict.fromkeys(("optimizer_state", "chunk"), "without copies")

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        return self.chain

    def central_stride(self) -> int:
        return self.central


class IncrementalReplication(Replication, frozen=True, kw_only=True, tag="incremental"):
    """Copies to another device after every batch, at most `lag` batches behind; a stage waits for a later copy.

    A death then costs at most `lag` batches. With `lag = 0` nobody waits: copies are as frequent as the links' idle
    time allows.
    """

    lag: Annotated[
        Count,
        doc(
            "Batches that a stage may be ahead of its copy, and so the most that one death can cost. A batch sends as"
            " many bytes as the stage has weights; where links are too slow for that, stages wait, or with a larger"
            " number copy less often. 0 for no limit: copies use the links' idle time only."
        ),
    ] = 2
    central: Annotated[Count, doc("Batches between two copies to the coordinator; 0 for never.")] = 0
    share: Annotated[
        float, msgspec.Meta(gt=0.0, le=1.0), doc("Fraction of the links' idle time that copies may use.")
    ] = 0.9

    def copy_stride(self, step_s: float, version_s: float, idle_s: float) -> int:
        available_s = self.share * idle_s
        if step_s <= available_s:
            return 1
        return min(_MAX_STRIDE, max(2, math.ceil(version_s / available_s))) if available_s > 0 else _MAX_STRIDE

    @property
    def max_lag(self) -> int:
        return self.lag

    def central_stride(self) -> int:
        return self.central

    @property
    def sends_steps(self) -> bool:
        return True


def next_version_to_copy(waiting: Iterable[int], stride: int, in_order: bool = False) -> int | None:
    """Which of the versions that wait to be copied goes next: one that other stages that lag behind pick as well.

    That is the multiple of the highest power of two, the newest among equals. A stage that keeps up copies all of them.
    With `in_order` it is the oldest: where no stage may lag far behind, all of them copy every version.
    """
    copied = [version for version in waiting if version % stride == 0] if stride else []
    if in_order:
        return min(copied, default=None)
    return max(copied, key=lambda version: ((version // stride) & -(version // stride), version), default=None)
