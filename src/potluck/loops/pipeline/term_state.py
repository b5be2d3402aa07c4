"""Terms: the periods between two layouts. Which versions they made, how far the current one is, and why it must end.

Version v is the weights after v batches. A rollback to v discards what came later; the same batches are then computed
again in a new term, so a version is identified by its number and the term that made it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from potluck.loops.message_limits import is_usable_loss
from potluck.loops.messages import Message
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import (
    Assign,
    Examine,
    Fetch,
    Halt,
    Inventory,
    Kept,
    Measure,
    Measured,
    Piece,
    Ready,
    Report,
    Scored,
)
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.recovery import Recovery

__all__ = ["PendingAnswers", "TermHistory", "TermProgress", "TermState"]

_ANSWERS: dict[type[Message], type[Message]] = {
    Halt: Inventory,
    Measure: Measured,
    Assign: Ready,
    Fetch: Piece,
    Examine: Scored,
}


class TermHistory:
    """The terms that count, and the version each began with."""

    def __init__(self, terms: Sequence[tuple[int, int]] = ()) -> None:
        self._terms = list(terms)  # term, version it began with; both rising

    @property
    def terms(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._terms)

    def begin_term(self, term: int, version: int) -> None:
        """Continue from a version in a new term; versions beyond it no longer count."""
        self._terms = [entry for entry in self._terms if entry[1] < version]
        self._terms.append((term, version))

    def term_that_made(self, version: int) -> int:
        """The term that made a version; 0 for the one the run began with."""
        return next((term for term, start_version in reversed(self._terms) if start_version < version), 0)


class TermProgress:
    """How far each stage is in one term. A batch is committed once every stage has applied its gradient."""

    def __init__(self, plan: PipelinePlan, start_version: int, secure_version: int) -> None:
        self.plan = plan
        self.start_version = start_version
        # The newest version of which every layer is held by two devices or by the coordinator.
        self.secure_version = secure_version
        self._applied_versions = dict.fromkeys(plan.order, start_version)
        self._copies: dict[tuple[int, int], set[int]] = {(layers[0], layers[-1]): set() for layers in plan.stage_layers}
        self._losses: dict[int, float] = {}
        self._lost: set[str] = set()
        self._stuck: set[str] = set()

    @property
    def committed_version(self) -> int:
        return min(self._applied_versions.values())

    @property
    def slowest_stages(self) -> list[str]:
        """The devices that have not applied the next batch to commit."""
        return [device for device, version in self._applied_versions.items() if version == self.committed_version]

    @property
    def applied_versions(self) -> Mapping[str, int]:
        return self._applied_versions

    def record_report(self, stage: str, report: Report) -> bool:
        """Whether the report is of a batch that was not known yet."""
        if report.loss is not None and is_usable_loss(report.loss) and stage == self.plan.order[-1]:
            self._losses[report.applied - 1] = report.loss
        is_new = report.applied > self._applied_versions[stage]
        self._applied_versions[stage] = max(self._applied_versions[stage], report.applied)
        return is_new

    def pop_loss(self, batch: int) -> float | None:
        return self._losses.pop(batch, None)

    def mark_lost(self, device: str) -> None:
        self._lost.add(device)

    def mark_stuck(self, device: str) -> None:
        """A stage waits for what cannot arrive if the next stage is dead."""
        self._stuck.add(device)

    def unfinished_stages(self) -> Sequence[str]:
        """Stages before a dead one that can still apply batches of which the dead stage's step is copied elsewhere."""
        order = self.plan.order
        dead = [index for index, device in enumerate(order) if device in self._lost]
        before = order[: dead[0]] if dead else ()
        if not before:
            return ()
        version = min(self._newest_copy(index) for index in dead)
        if before[-1] in self._stuck:
            version = min(version, self._applied_versions[before[-1]])
        return [device for device in before if self._applied_versions[device] < version]

    def _newest_copy(self, stage: int) -> int:
        """The newest version of a stage that another device holds."""
        layers = self.plan.stage_layers[stage]
        if self.plan.replica_holders and self.plan.replica_holders[stage] in self._lost:
            return self.secure_version
        return max(self._copies[layers[0], layers[-1]], default=self.secure_version)

    def record_copy(self, kept: Kept) -> bool:
        """Whether this copy makes a newer version secure."""
        copies = self._copies.get((kept.first, kept.last))
        if copies is None:
            return False
        copies.add(kept.version)
        complete = set.intersection(*self._copies.values())
        return self.advance_secure_version(max(complete, default=self.secure_version))

    def advance_secure_version(self, version: int) -> bool:
        if version <= self.secure_version:
            return False
        self.secure_version = version
        for copies in self._copies.values():
            copies -= {older for older in copies if older < version}
        return True


class PendingAnswers:
    """Requests to several devices, and the answers so far."""

    def __init__(self, requests: Mapping[str, Message], is_open: bool = True) -> None:
        self.requests = requests
        self.answers: dict[str, Message] = {}
        self.is_open = is_open

    def unanswered(self) -> list[str]:
        return [device for device in self.requests if device not in self.answers]

    def record_answer(self, sender: str, message: Message) -> None:
        """Store an answer; one that was not asked for is ignored."""
        request = self.requests.get(sender)
        if self.is_open and request is not None and isinstance(message, _ANSWERS[type(request)]):
            self.answers[sender] = message


class TermState:
    """The current term. Any part of the coordinator may mark it as broken; then a new one begins."""

    def __init__(
        self, number: int, recovery: Recovery, batch_timer: BatchTimer, waits_for_copies: bool = False
    ) -> None:
        self.number = number
        self._waits_for_copies = waits_for_copies  # a stage may not get far ahead of its copies
        self._recovery = recovery
        self._batch_timer = batch_timer
        self.history = TermHistory()
        self.layout: PipelinePlan | None = None  # from when it is assigned
        self.progress: TermProgress | None = None  # from when every stage is ready
        self.pending = PendingAnswers({}, is_open=False)
        self.is_broken = False  # a device of it is lost or misbehaves
        self.replan_wanted = False  # another layout is worth moving to
        self.loss_noticed_at = math.inf  # where only the batch timer reveals a loss
        self.range_end = 0  # no batch beyond it was ever let in
        self.committed_at = 0.0

    def begin(self) -> None:
        self.number += 1
        self.is_broken = self.replan_wanted = False
        self.loss_noticed_at = math.inf
        self.layout = self.progress = None

    def interrupt_requests(self) -> None:
        """A device left: the answers that are awaited may never be complete."""
        if self.pending.is_open:
            self.is_broken = True

    def remove_device(self, device: str, now: float) -> None:
        """A device is gone: end the term at once or when the batch timer would notice, if it held layers."""
        if self.progress is None:
            return
        plan = self.progress.plan
        self.progress.mark_lost(device)
        if device not in plan.order:
            if device in plan.replica_holders:  # its copies must move, at once if a stage waits for them
                self.is_broken = self.is_broken or self._waits_for_copies
                self.replan_wanted = True
        elif self._recovery.notice == "connection":
            self.is_broken = True
        else:
            self.loss_noticed_at = min(self.loss_noticed_at, max(self._loss_deadline(plan), now))

    def _loss_deadline(self, plan: PipelinePlan) -> float:
        """When the oldest batch in flight has taken several times the mean, counted from when it was let in.

        A batch takes as many periods as there are batches in flight, and all but one of them are over.
        """
        in_flight = plan.batches_in_flight
        periods = self._recovery.factor * in_flight - (in_flight - 1)
        return self.committed_at + periods * self._batch_timer.mean_s
