"""Opens turns: chooses the devices of a round, invites them, and sends them the model."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from potluck.loops.backends import TurnIdentity
from potluck.loops.leader import Leader
from potluck.loops.messages import Invite, Pull, Segment
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.turn_record import TurnRecord
from potluck.planning.data_injection import SampleTransfer

__all__ = ["TurnDispatcher"]


class TurnDispatcher:
    """Numbers the turns of a run and serves the model to them."""

    def __init__(self, leader: Leader, context: RoundsContext) -> None:
        self._node = leader.node
        self._roster = leader.roster
        self._context = context
        self._backend = context.backend
        self._progress = context.progress

    def open_turns(self, idle: list[str], wanted: int) -> list[TurnRecord]:
        """Invite at most `wanted` of the idle devices, chosen at random; first those that should finish first."""
        if wanted < len(idle):
            chosen = self._node.rng("invite", self._progress.turn).choice(len(idle), wanted, replace=False)
            idle = [idle[index] for index in sorted(chosen)]
        gifts = self._plan_gifts(idle)
        order = sorted(idle, key=lambda device: (self._context.expected_turn_s(device), device))
        return [turn for device in order if (turn := self.open_turn(device, gifts)) is not None]

    def _plan_gifts(self, devices: Sequence[str]) -> Sequence[SampleTransfer]:
        """Which device sends samples to which in this round, given the batches of their latest turns."""
        progress, sharing = self._progress, self._context.sharing
        batches = {device: progress.batches[device] for device in devices if device in progress.batches}
        if sharing is None or not batches:
            return ()
        gifts = sharing.plan_gifts(batches, progress.round)
        progress.bytes_shared += sum(gift.samples for gift in gifts) * sharing.sample_bytes
        return gifts

    def open_turn(self, device: str, gifts: Sequence[SampleTransfer] = (), ahead: bool = False) -> TurnRecord | None:
        """Invite a device to this round or, `ahead`, to the next one; None if it is not connected."""
        progress, incarnation = self._progress, self._roster.incarnation_of(device)
        if incarnation is None:
            return None
        round, count = progress.round + ahead, progress.counts.get(device, 0)
        gives = tuple((gift.receiver, gift.samples) for gift in gifts if gift.donor == device)
        gets = sum(gift.samples for gift in gifts if gift.receiver == device)
        turn = TurnRecord(
            Invite(progress.turn, round, count, gives, gets, ahead), device, incarnation, self._node.now()
        )
        turn.start_from(self._backend.state, progress.version)
        turn.submodel = self._backend.select_submodel(TurnIdentity(device, round, count))
        progress.turn += 1
        progress.counts[device] = count + 1
        self._node.send(device, turn.invite)
        return turn

    def send_segment(self, turn: TurnRecord, pull: Pull, state: Any) -> Awaitable[None] | None:
        """Send the requested layers of a version; None if they are already in flight."""
        sending = turn.pending_sends.get(pull.first)
        if sending is not None and not sending.done():
            return None
        payload = self._backend.encode_segment(state, turn.submodel, pull.first, pull.last)
        segment = Segment(payload, turn=pull.turn, first=pull.first, last=pull.last, begun=self._node.now())
        self._progress.bytes_sent += segment.nbytes
        sent = self._node.send(turn.device, segment)
        turn.track_send(pull.first, sent)
        return sent
