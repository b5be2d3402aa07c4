"""What the coordinator of a rounds run is given: the job's parts, the model, and the run's policy and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from potluck.loops.backends import ServerBackend
from potluck.loops.leader import RunPolicy
from potluck.loops.run_progress import RunProgress
from potluck.loops.settings import Rounds
from potluck.planning.data_injection import Injection, SampleTransfer, plan_injection

__all__ = ["RoundsContext", "SampleSharing"]


@dataclass(frozen=True)
class SampleSharing:
    """Raw samples that devices send each other where their data is skewed."""

    injection: Injection
    sample_bytes: int  # on the wire
    seed: int

    def plan_gifts(self, batches: Mapping[str, int], round: int) -> Sequence[SampleTransfer]:
        return plan_injection(self.injection, batches, self.seed, round)


class RoundsContext(NamedTuple):
    """Everything a rounds coordinator works with besides its node."""

    settings: Rounds
    backend: ServerBackend
    layers: int
    expected_turn_s: Callable[[str], float]  # by device; updates are merged in this order
    max_samples: Callable[[str], int]  # that a device can train on in one turn
    policy: RunPolicy
    progress: RunProgress
    sharing: SampleSharing | None = None

    def learning_rate_factor(self, samples: int, devices: int) -> float:
        """The factor on the learning rate in the current round, given its samples and devices."""
        settings, round = self.settings, self.progress.round
        return settings.schedule.lr_factor(round) * settings.scaling.lr_factor(samples, devices, round)
