"""What anyone who leads does, whatever is led: knowing who is here, asking until there is an answer, keeping the books.

One coroutine reads one mailbox, so there are no locks; every wait has an end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import NamedTuple

from potluck.loops.coordinator_journal import CoordinatorJournal
from potluck.loops.device_roster import DeviceRoster
from potluck.loops.messages import Joined, Lost, Message
from potluck.loops.node import COORDINATOR, Envelope, Node
from potluck.loops.pipeline.message_checks import LONGEST
from potluck.loops.pipeline.messages import Assign, Examine, Fetch, Halt, Inventory, Piece, Ready, Refused, Scored
from potluck.loops.pipeline.model_archive import ModelArchive
from potluck.loops.pipeline.pipeline_planner import PipelinePlanner
from potluck.loops.pipeline.pipeline_policy import PipelineRunPolicy
from potluck.loops.pipeline.quarantine import Quarantine
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.run_progress import RunOutcome, RunProgress
from potluck.loops.stall_timeout import StallTimeout

__all__ = ["PipelineContext", "PipelineLeader"]

_MUTE = 12  # times `retry` without a word from one who was asked again and again, after which it is left out
_OFTEN, _OF_LATE_S = 5, 60.0  # losses within this time, after which a device that returns is left out for a while
_RECALL = 4  # times `retry`, after which it is asked back
_ANSWERS: dict[type[Message], type[Message]] = {Halt: Inventory, Assign: Ready, Fetch: Piece, Examine: Scored}


class PipelineContext(NamedTuple):
    """What a run is led by."""

    settings: Pipeline
    fleet: tuple[str, ...]
    planner: PipelinePlanner
    archive: ModelArchive
    policy: PipelineRunPolicy
    progress: RunProgress
    batch_samples: int  # of a batch


class PipelineLeader:
    """Knows the devices; what they say and what their coming and going means is for those who build on it."""

    def __init__(self, node: Node, orders: PipelineContext) -> None:
        self._node = node
        self._settings = orders.settings
        self._fleet = orders.fleet
        self.progress = orders.progress
        self._journal = CoordinatorJournal(node, orders.progress)
        self._term = orders.progress.turn
        self._roster = DeviceRoster()
        self._quarantine = Quarantine()  # who is here and was left out
        self._loss_times: dict[str, deque[float]] = {}  # when each was lost lately
        self._last_contact_at: dict[str, float] = {}  # when each was last heard
        self._open_requests: Mapping[str, Message] = {}  # whom what, lately
        self._answers: dict[str, Message] | None = None  # to the question that is open
        self._refused: dict[str, str] = {}  # who sent what cannot be used, and why: out until the run is over
        self._needs_new_term = False  # someone is lost, and a new term must begin
        self._started = False
        self._stall_timeout = StallTimeout(orders.settings.patience)

    # --- who is here -----------------------------------------------------------------------------------------------

    async def _drain_mailbox(self) -> None:
        """Take note of everyone whose arrival is in the mailbox already."""
        while (envelope := await self._node.receive(self._node.now())) is not None:
            self._handle_message(envelope)

    def _candidate_devices(self, among: Collection[str] | None = None) -> list[str]:
        """Who is here, in the fleet's order, one who holds the data first; nobody if none of them does."""
        here = [name for name in (self._roster if among is None else among) if name not in self._quarantine]
        central = next((holder for holder in self._data_holders() if holder in here), None)
        if central is None:
            return []
        return [central, *(name for name in self._fleet if name in here and name != central)]

    def _data_holders(self) -> tuple[str, ...]:
        return (self._settings.central or self._fleet[0], *self._settings.sources)

    def _handle_message(self, envelope: Envelope) -> None:
        message, sender = envelope.message, envelope.sender
        if isinstance(message, Joined):
            self._add_device(message.device, message.incarnation)
        elif isinstance(message, Lost):
            self._remove_device(message)
        elif (
            self._roster.incarnation_of(sender) == envelope.incarnation and getattr(message, "term", None) == self._term
        ):
            self._last_contact_at[sender] = self._node.now()
            self._stall_timeout.extend_once(sender, self._node.now())
            self._handle_term_message(sender, message)

    def _add_device(self, device: str, incarnation: int) -> None:
        if device in self._refused:
            self._node.send(device, Refused(self._term, device, self._refused[device]))
            return
        self._stall_timeout.extend_once(device, self._node.now())
        self._roster.add_device(device, incarnation)
        if self._started:
            self._journal.record_event(device, "joined", incarnation=incarnation)
        if self._is_flapping(device):
            self._journal.record_event(device, "left out", term=self._term, reason="comes and goes")
            self._quarantine.add_device(device, self._node.now(), _RECALL * float(self._settings.retry))
            return
        self._quarantine.forget_device(device)
        if self._started:
            self._on_device_joined(device)

    def _is_flapping(self, device: str) -> bool:
        """Whether it was lost so often of late that its return would only disturb; who holds the data is needed."""
        losses = self._loss_times.get(device)
        if losses is None or len(losses) < _OFTEN or device in self._data_holders():
            return False
        return self._node.now() - losses[0] < _OF_LATE_S

    def _remove_device(self, lost: Lost) -> None:
        if not self._roster.remove_device(lost.device, lost.incarnation):
            return
        was_aside = self._quarantine.release_device(lost.device)
        self._loss_times.setdefault(lost.device, deque(maxlen=_OFTEN)).append(self._node.now())
        self._journal.record_event(lost.device, "lost", incarnation=lost.incarnation, reason=lost.reason)
        if was_aside:
            return
        if self._answers is not None:
            self._needs_new_term = True
        self._on_device_left(lost.device)

    def _quarantine_device(self, device: str, reason: str, pause: int = _RECALL) -> None:
        """Go on without a device that is connected, as if it were lost, until it answers again."""
        self._journal.record_event(device, "left out", term=self._term, reason=reason)
        self._quarantine.add_device(device, self._node.now(), pause * float(self._settings.retry))
        self._on_device_left(device)
        self._needs_new_term = True

    def _refuse_device(self, device: str, reason: str) -> None:
        """What a device sent cannot be used: it is told why, and the run goes on without it."""
        incarnation = self._roster.incarnation_of(device)
        if incarnation is None:
            return
        self._roster.remove_device(device, incarnation)
        self._quarantine.forget_device(device)
        self._refused[device] = reason
        self.progress.refused += 1
        self._journal.record_event(device, "refused", incarnation=incarnation, reason=reason)
        self._node.send(device, Refused(self._term, device, reason))
        if self._answers is not None:
            self._needs_new_term = True
        self._on_device_left(device)

    def _handle_refusal(self, sender: str, refused: Refused) -> None:
        """One cannot use what another sends. The other goes; but if nobody else holds the data, or if it is the
        coordinator, the one who cannot does."""
        device, reason = refused.device, refused.reason[:LONGEST]
        holders = {holder for holder in self._data_holders() if holder in self._roster}
        if device == COORDINATOR or (device in self._roster and holders == {device}):
            self._refuse_device(sender, f"it cannot use what {device} sends: {reason}")
        else:
            self._refuse_device(device, f"{reason} (found by {sender})")

    def _on_device_joined(self, device: str) -> None:
        raise NotImplementedError

    def _on_device_left(self, device: str) -> None:
        raise NotImplementedError

    def _handle_term_message(self, sender: str, message: Message) -> None:
        """Take in what a device says in this term."""
        raise NotImplementedError

    # --- asking ----------------------------------------------------------------------------------------------------

    async def _request_answers(self, requests: Mapping[str, Message], most_s: float = math.inf) -> dict[str, Message]:
        """Ask devices until all have answered, or for at most so long; the loss of one of them disturbs.

        Who is at it says so when it is asked again. One of several that says nothing at all is left out.
        """
        answers: dict[str, Message] = {}
        self._open_requests, self._answers = requests, answers
        began = self._node.now()
        pause, again_at, ends_at = float(self._settings.retry), -math.inf, began + most_s
        while not self._needs_new_term and any(device not in answers for device in requests):
            now = self._node.now()
            if now >= self._stall_timeout.expires_at:
                self._needs_new_term = True
            elif now >= ends_at:
                break
            elif now >= again_at:
                self._quarantine_silent(requests, answers, began)
                for device, request in requests.items():
                    if device not in answers:
                        self._node.send(device, request)
                again_at, pause = now + pause, min(2 * pause, 4 * float(self._settings.retry))
            else:
                envelope = await self._node.receive(min(again_at, ends_at, self._stall_timeout.expires_at))
                if envelope is not None:
                    self._handle_message(envelope)
        self._answers = None
        return answers

    def _quarantine_silent(self, asked: Collection[str], answers: Collection[str], began: float) -> None:
        """Not, where all are mute: then it is our own link."""
        longest, now = _MUTE * float(self._settings.retry), self._node.now()
        waiting = [device for device in asked if device not in answers]
        mute = [device for device in waiting if now - max(began, self._last_contact_at.get(device, began)) >= longest]
        for device in mute if len(mute) < len(asked) else ():
            self._quarantine_device(device, "does not answer")

    def _record_answer(self, sender: str, message: Message) -> None:
        asked = self._open_requests.get(sender)
        if self._answers is not None and asked is not None and isinstance(message, _ANSWERS[type(asked)]):
            self._answers[sender] = message

    def _stall_outcome(self) -> RunOutcome | None:
        return (
            RunOutcome("failed", self._stall_reason()) if self._node.now() >= self._stall_timeout.expires_at else None
        )

    # --- words -----------------------------------------------------------------------------------------------------

    def _refused_outcome(self) -> RunOutcome | None:
        """The run is over where everybody who holds the data was refused."""
        holders = dict.fromkeys(self._data_holders())
        if any(name not in self._refused for name in holders):
            return None
        return RunOutcome(
            "failed", "; ".join(f"{name} holds the data and was refused: {self._refused[name]}" for name in holders)
        )

    def _stall_reason(self) -> str:
        """Why the run cannot go on, in one sentence."""
        waited = f"nothing moved for {self._settings.patience}"
        if not self._candidate_devices():
            gone = " or ".join(dict.fromkeys(self._data_holders()))
            return (
                f"{waited}: {gone} holds the data and is gone; the run can be resumed from batch {self.progress.round}"
            )
        missing = [
            name for name in self._candidate_devices() if self._answers is not None and name not in self._answers
        ]
        whom = f"still waiting for {', '.join(missing[:5])}" if missing else f"at batch {self.progress.round}"
        return f"{waited}: {whom}"
