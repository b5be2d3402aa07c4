"""Which devices of a pipeline may hold layers: connected, not in quarantine and not refused."""

from __future__ import annotations

from collections.abc import Collection

from potluck.loops.leader import Leader
from potluck.loops.messages import Joined, Lost
from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.message_checks import MAX_REASON_CHARS
from potluck.loops.pipeline.messages import Halt, Refused
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.quarantine import Quarantine
from potluck.loops.pipeline.term_state import TermState
from potluck.loops.run_progress import RunOutcome, diverged_outcome
from potluck.model.codecs.array_checks import NOT_FINITE

__all__ = ["PipelineMembers"]

_RECALL_RETRIES = 4  # times `retry` until a quarantined device is contacted again
_MUTE_RETRIES = 12  # times `retry` without a message until a device that is asked repeatedly is quarantined


class PipelineMembers:
    """Adds and removes the devices of a pipeline. A device that leaves the layout breaks the term."""

    def __init__(self, leader: Leader, context: PipelineContext, term: TermState) -> None:
        self._leader = leader
        self._node = leader.node
        self._context = context
        self._retry_s = float(context.settings.retry)
        self._term = term
        self.quarantine = Quarantine()
        self._last_contact_at: dict[str, float] = {}
        self._refused: dict[str, str] = {}  # until the run ends: device, and why

    # --- who may take part -----------------------------------------------------------------------------------------

    def candidates(self, among: Collection[str] | None = None) -> list[str]:
        """The devices that may hold layers, in the fleet's order after one that holds the data; none without it."""
        present = self._leader.roster if among is None else among
        usable = [name for name in present if name not in self.quarantine]
        central = next((holder for holder in self._context.data_holders if holder in usable), None)
        if central is None:
            return []
        return [central, *(name for name in self._context.fleet if name in usable and name != central)]

    def refused_outcome(self) -> RunOutcome | None:
        """The run fails once every device that holds the data has been refused."""
        holders = dict.fromkeys(self._context.data_holders)
        if any(name not in self._refused for name in holders):
            return None
        reasons = "; ".join(f"{name} holds the data and was refused: {self._refused[name]}" for name in holders)
        if len(self._refused) > 1 and all(NOT_FINITE in reason for reason in self._refused.values()):
            return diverged_outcome(self._context.progress.round, f"no device's numbers are finite; {reasons}")
        return RunOutcome("failed", reasons)

    # --- joining and leaving ---------------------------------------------------------------------------------------

    def add_device(self, joined: Joined) -> bool:
        """Whether the device may take part from now on."""
        device, now = joined.device, self._node.now()
        if device in self._refused:
            self._node.send(device, Refused(self._term.number, device, self._refused[device]))
            return False
        self._leader.add_device(joined)
        if device not in self._context.data_holders and self.quarantine.is_flapping(device, now):
            self._leader.journal.record_event(device, "left out", term=self._term.number, reason="comes and goes")
            self.quarantine.add_device(device, now, _RECALL_RETRIES * self._retry_s)
            return False
        self.quarantine.forget_device(device)
        return True

    def remove_device(self, lost: Lost) -> None:
        if not self._leader.remove_device(lost):
            return
        was_quarantined = self.quarantine.release_device(lost.device)
        self.quarantine.record_loss(lost.device, self._node.now())
        if not was_quarantined:
            self._term.interrupt_requests()
            self._remove_from_layout(lost.device)

    def _remove_from_layout(self, device: str) -> None:
        self._context.planner.forget_device(device)
        self._term.remove_device(device, self._node.now())

    # --- unresponsive devices --------------------------------------------------------------------------------------

    def record_contact(self, device: str) -> None:
        """A connected device has sent something."""
        self._last_contact_at[device] = self._node.now()
        self._leader.stall_timeout.extend_once(device, self._node.now())

    def quarantine_device(self, device: str, reason: str, pause_retries: int = _RECALL_RETRIES) -> None:
        """Continue without a connected device as if it were lost, until it answers again."""
        self._leader.journal.record_event(device, "left out", term=self._term.number, reason=reason)
        self.quarantine.add_device(device, self._node.now(), pause_retries * self._retry_s)
        self._remove_from_layout(device)
        self._term.is_broken = True

    def quarantine_mute(self, asked: Collection[str], unanswered: Collection[str], since: float) -> None:
        """Quarantine the devices that stay silent, unless all do: then the coordinator's own link is the cause."""
        now = self._node.now()
        mute = [
            device
            for device in unanswered
            if now - max(since, self._last_contact_at.get(device, since)) >= _MUTE_RETRIES * self._retry_s
        ]
        for device in mute if len(mute) < len(asked) else ():
            self.quarantine_device(device, "does not answer")

    def recall_devices(self) -> None:
        """Contact the quarantined devices that are due."""
        for device in self.quarantine.due_devices(self._node.now()):
            self._node.send(device, Halt(self._term.number, self._term.history.terms, idle=True))

    def end_quarantine(self, device: str) -> bool:
        """Whether the device was in quarantine until now."""
        if not self.quarantine.release_device(device):
            return False
        self._leader.journal.record_event(device, "answers again", term=self._term.number)
        return True

    # --- refusals --------------------------------------------------------------------------------------------------

    def refuse_device(self, device: str, reason: str) -> None:
        """Exclude a device whose messages cannot be used, and tell it why."""
        incarnation = self._leader.roster.incarnation_of(device)
        if incarnation is None:
            return
        self._leader.roster.remove_device(device, incarnation)
        self.quarantine.forget_device(device)
        self._refused[device] = reason
        self._context.progress.refused += 1
        self._leader.journal.record_event(device, "refused", incarnation=incarnation, reason=reason)
        self._node.send(device, Refused(self._term.number, device, reason))
        self._term.interrupt_requests()
        self._remove_from_layout(device)

    def resolve_refusal(self, sender: str, refused: Refused) -> None:
        """Exclude the device whose message was refused, or the one that refused it.

        The latter goes if it refused the coordinator, or the only device that holds the data.
        """
        device, reason = refused.device, refused.reason[:MAX_REASON_CHARS]
        roster = self._leader.roster
        holders = {holder for holder in self._context.data_holders if holder in roster}
        if device == COORDINATOR or (device in roster and holders == {device}):
            self.refuse_device(sender, f"it cannot use what {device} sends: {reason}")
        else:
            self.refuse_device(device, f"{reason} (reported by {sender})")
