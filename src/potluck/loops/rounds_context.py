"""What the coordinator of a rounds run is given: the job's parts, the model, and the run's policy and progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from potluck import seeds
from potluck.loops.backends import ServerBackend
from potluck.loops.frozen_exchange import FrozenBackend
from potluck.loops.leader import RunPolicy
from potluck.loops.run_progress import RunProgress
from potluck.loops.settings import Rounds
from potluck.loops.turn_record import TurnRecord
from potluck.loops.turn_sizing import SampleLimit
from potluck.planning.data_injection import Injection, InjectionFleet, SampleTransfer

__all__ = ["RoundsContext", "SampleSharing"]


@dataclass(frozen=True)
class SampleSharing:
    """Raw samples that devices send each other where their data is skewed."""

    injection: Injection
    sample_bytes: int  # on the wire
    seed: int
    classes: Mapping[str, Collection[int]] = field(default_factory=dict)  # that each device holds, where they matter
    class_count: int = 0

    def count_update(self, turn: TurnRecord, progress: RunProgress) -> None:
        """Note how many samples of an update were the device's own and how many others sent, by its own account."""
        received = min(turn.received, turn.invite.gets)
        progress.bytes_shared += received * self.sample_bytes
        progress.batches[turn.device] = max(1, turn.samples - received)

    def plan_gifts(self, receivers: Sequence[str], batches: Mapping[str, int], turn: int) -> Sequence[SampleTransfer]:
        """What other devices send for the turns that begin with number `turn`."""
        fleet = InjectionFleet(batches, self.classes, self.class_count)
        rng = seeds.child_generator(self.seed, "injection", turn)
        return self.injection.plan_transfers(receivers, fleet, rng)


class RoundsContext(NamedTuple):
    """Everything a rounds coordinator works with besides its node."""

    settings: Rounds
    backend: ServerBackend
    layers: int
    expected_turn_s: Callable[[str], float]  # by device; updates are merged in this order
    # That a device can train on in a turn, by its name, what it declared, and when the turn began and ended.
    sample_limit: Callable[[str, int | None, float, float], SampleLimit]
    policy: RunPolicy
    progress: RunProgress
    sharing: SampleSharing | None = None
    frozen: FrozenBackend | None = None  # weights that devices may have to fetch before their first turn

    def learning_rate_factor(self, samples: int, devices: int) -> float:
        """The factor on the learning rate in the current round, given its samples and devices."""
        settings, round = self.settings, self.progress.round
        scheduled = settings.schedule.lr_factor(round, self.progress.lr_drops("schedule"))
        return scheduled * settings.scaling.lr_factor(samples, devices, round)
