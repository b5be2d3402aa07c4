"""Raw samples that devices give each other where their data is skewed, as the coordinator plans it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.planning.injection import Gift, Injection, share_out

__all__ = ["Sharing"]


@dataclass(frozen=True)
class Sharing:
    """The job's words about it, and what a sample costs on the wire."""

    injection: Injection
    sample_bytes: int
    seed: int

    def gifts(self, batches: Mapping[str, int], round: int) -> Sequence[Gift]:
        return share_out(self.injection, batches, self.seed, round)
