"""What every coordinator does besides its own protocol, whichever loop it leads.

    roster          which devices are connected, and in which incarnation
    stall timeout   how long the run may go without progress before it fails
    policy          when to evaluate, save and stop, as the job says
    journal         events and figures, each with the round it belongs to

A coordinator holds one Leader and adds its messages. One coroutine reads one mailbox, so there are no locks, and every
wait ends.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Protocol

from potluck.journal import Instant, Scalar
from potluck.loops.messages import Joined, Lost, Stop
from potluck.loops.node import Envelope, Node, Step, Work
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.model.lr_schedules import LearningRateSchedule, PlateauSchedule, PlateauState
from potluck.model.metrics import TaskMetrics
from potluck.units import Seconds

__all__ = ["CoordinatorJournal", "DeviceRoster", "Leader", "LedProtocol", "RunPolicy", "StallTimeout"]


class RunPolicy(Protocol):
    """When to stop, evaluate and save. The run decides; a loop asks after every round."""

    def stop_outcome(self, progress: RunProgress, now: float) -> RunOutcome | None:
        """How the run ends if one of the job's stop conditions holds."""

    def interrupt_outcome(self) -> RunOutcome | None:
        """How the run ends if the user asked for it."""

    def evaluation_due(self, round: int) -> bool:
        """Whether to evaluate the model after this many rounds."""

    def check_may_commit(self) -> None:
        """Called before each commit; raises if another coordinator leads the run."""

    def checkpoint_due(self, round: int) -> bool:
        """Whether the loop must drain after this many rounds so that they can be saved."""

    def save_checkpoint(self, progress: RunProgress, now: float) -> None:
        """Save the run; called only when nothing is in flight, so that it can resume at this point."""

    def report_progress(self, progress: RunProgress, now: float) -> None:
        """Show that a round was committed."""

    @property
    def metrics(self) -> TaskMetrics:
        """What the task is evaluated by."""

    def keep_best(self, progress: RunProgress) -> None:
        """Keep the newest version if it was just evaluated and is the best so far."""


class LedProtocol(Protocol):
    """What a leader asks of the coordinator that holds it."""

    def handle_message(self, envelope: Envelope) -> None:
        """Handle one message, membership events included."""

    def stall_reason(self) -> str:
        """What the run is waiting for, with the names of the devices."""


class Leader:
    """Roster, stall timeout, policy and journal of one run."""

    def __init__(
        self,
        node: Node,
        coordinator: LedProtocol,
        policy: RunPolicy,
        progress: RunProgress,
        patience: Seconds,
        schedules: Mapping[str, LearningRateSchedule] | None = None,
    ) -> None:
        self.node = node
        self._coordinator = coordinator
        self.policy = policy
        self.progress = progress
        self.journal = CoordinatorJournal(node, progress)
        self.roster = DeviceRoster()
        self.stall_timeout = StallTimeout(patience)
        self._patience = patience
        self._schedules = schedules or {}  # of the learning rate, by their setting
        self.has_started = False

    # --- start and end ---------------------------------------------------------------------------------------------

    async def start(self) -> RunOutcome | None:
        """Register the devices that are already connected; the outcome if the run is over before it begins."""
        self.stall_timeout.restart_timer(self.node.now())
        while (envelope := await self.node.receive(self.node.now())) is not None:
            self._coordinator.handle_message(envelope)
        self.has_started = True
        return self.stop_outcome()

    def stop_devices(self) -> None:
        for device in self.roster:
            self.node.send(device, Stop())

    def stop_outcome(self) -> RunOutcome | None:
        """How the run ends if one of the job's stop conditions holds."""
        return self.policy.stop_outcome(self.progress, self.node.now())

    def stall_outcome(self) -> RunOutcome | None:
        """How the run ends if nothing has progressed for too long."""
        if self.node.now() < self.stall_timeout.expires_at:
            return None
        return RunOutcome("failed", f"no progress for {self._patience}: {self._coordinator.stall_reason()}")

    # --- mailbox ---------------------------------------------------------------------------------------------------

    async def receive(self, until: float) -> Envelope | None:
        """The next message; None at `until` or when the run has stalled, whichever is earlier."""
        return await self.node.receive(min(until, self.stall_timeout.expires_at))

    async def handle_next(self, until: float) -> None:
        """Let the coordinator handle the next message, if one arrives before `until`."""
        envelope = await self.receive(until)
        if envelope is not None:
            self._coordinator.handle_message(envelope)

    # --- membership ------------------------------------------------------------------------------------------------

    def add_device(self, joined: Joined) -> None:
        self.stall_timeout.extend_once(joined.device, self.node.now())
        self.roster.add_device(joined.device, joined.incarnation)
        if self.has_started:
            self.journal.record_event(joined.device, "joined", incarnation=joined.incarnation)

    def remove_device(self, lost: Lost) -> bool:
        """Whether the device was connected in that incarnation until now."""
        if not self.roster.remove_device(lost.device, lost.incarnation):
            return False
        self.journal.record_event(lost.device, "lost", incarnation=lost.incarnation, reason=lost.reason)
        return True

    # --- evaluation ------------------------------------------------------------------------------------------------

    async def evaluate(self, score_model: Callable[[], Mapping[str, float]]) -> None:
        """Score the model on held-out data; the coordinator's own time is not modelled."""
        score = await self.node.compute(Work([Step(0.0)], lambda pace: score_model()))
        self.record_score(score)

    def record_score(self, score: Mapping[str, float]) -> None:
        """The newest version was evaluated on held-out data."""
        self.journal.record_evaluation(score, self.policy.metrics)
        for setting, schedule in self._schedules.items():
            if isinstance(schedule, PlateauSchedule) and score:
                self._observe_plateau(setting, schedule, score)
        self.policy.keep_best(self.progress)

    def _observe_plateau(self, setting: str, schedule: PlateauSchedule, score: Mapping[str, float]) -> None:
        before, metric = self.progress.plateaus.get(setting, PlateauState()), schedule.metric
        value, higher = score.get(metric, math.nan), self.policy.metrics.directions[metric]
        after = schedule.observe_evaluation(before, self.progress.round, value, higher)
        self.progress.plateaus[setting] = after
        if after.drops != before.drops:
            self.journal.record_scalar(f"{setting}_factor", schedule.drop_factor(len(after.drops)))


class DeviceRoster(Set[str]):
    """The connected devices, sorted by name, and the incarnation of each."""

    def __init__(self) -> None:
        self._incarnations: dict[str, int] = {}
        self._names: list[str] = []
        self._departed: dict[str, None] = {}

    def __contains__(self, device: object) -> bool:
        return device in self._incarnations

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def departed(self) -> list[str]:
        """The devices that were connected and have not returned, the latest last."""
        return list(self._departed)

    def incarnation_of(self, device: str) -> int | None:
        """The incarnation of a connected device; None for any other."""
        return self._incarnations.get(device)

    def add_device(self, device: str, incarnation: int) -> None:
        if device not in self._incarnations:
            bisect.insort(self._names, device)
        self._incarnations[device] = incarnation
        self._departed.pop(device, None)

    def remove_device(self, device: str, incarnation: int) -> bool:
        """Remove a device unless it has returned in a newer incarnation; whether it was removed."""
        if self._incarnations.get(device) != incarnation:
            return False
        del self._incarnations[device]
        self._names.pop(bisect.bisect_left(self._names, device))
        self._departed[device] = None
        return True


class StallTimeout:
    """Restarts whenever the run progresses; any sign of activity extends it too, but only once per device.

    A device may crash and return forever, so its return alone must not keep a run alive. Nor must a batch that is
    computed and rolled back forever.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = 0.0
        self._extended_by: set[str | int] = set()
        self._newest_batch = 0

    @property
    def expires_at(self) -> float:
        return self._since + self._seconds

    def restart_timer(self, now: float) -> None:
        """The run has progressed."""
        self._since = now
        self._extended_by.clear()

    def record_batch(self, batch: int, now: float) -> None:
        """A batch is done: progress if it is the newest so far, otherwise only a sign of activity."""
        if batch > self._newest_batch:
            self._newest_batch = batch
            self.restart_timer(now)
        else:
            self.extend_once(batch, now)

    def extend_once(self, source: str | int, now: float) -> None:
        """A device, or a batch that is computed again, showed activity."""
        if source not in self._extended_by:
            self._extended_by.add(source)
            self._since = now


class CoordinatorJournal:
    """Writes a coordinator's journal records; each carries the round, and figures also the traffic and samples."""

    def __init__(self, node: Node, progress: RunProgress) -> None:
        self._node = node
        self._progress = progress

    def record_event(self, device: str, name: str, **fields: Any) -> None:
        """Something happened to a device."""
        self._node.record(Instant(device, name, self._node.now(), {"round": self._progress.round, **fields}))

    def record_scalar(self, name: str, value: float, **more: str) -> None:
        """A figure of the run; skipped unless finite, since JSON has no NaN or infinity."""
        if not math.isfinite(value):
            return
        progress = self._progress
        fields = {"round": progress.round, "bytes": progress.traffic_bytes, "samples": progress.samples, **more}
        self._node.record(Scalar(self._node.name, name, self._node.now(), value, fields))

    def record_evaluation(self, score: Mapping[str, float], metrics: TaskMetrics) -> None:
        """The newest version was evaluated; the values of a task that lists its metrics say which way is better."""
        progress = self._progress
        progress.score = {name: value for name, value in score.items() if math.isfinite(value)}
        progress.scored_round = progress.round
        progress.scores_finitely = math.isfinite(score.get("loss", 0.0))
        for name, value in progress.score.items():
            if metrics.listed is None:
                self.record_scalar(f"test_{name}", value)
            else:
                self.record_scalar(f"test_{name}", value, better="higher" if metrics.directions[name] else "lower")
