"""Raw samples that devices give each other where their data is skewed, as the coordinator plans it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.planning.data_injection import Injection, SampleTransfer, plan_injection

__all__ = ["SampleSharing"]


@dataclass(frozen=True)
class SampleSharing:
    """The job's words about it, and what a sample costs on the wire."""

    injection: Injection
    sample_bytes: int
    seed: int

    def plan_gifts(self, batches: Mapping[str, int], round: int) -> Sequence[SampleTransfer]:
        return plan_injection(self.injection, batches, self.seed, round)
