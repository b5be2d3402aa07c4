"""Opens turns: chooses the devices of a round, invites them, and sends them the model."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from potluck.loops.backends import TurnIdentity
from potluck.loops.leader import Leader
from potluck.loops.messages import GiftOrder, Give, Invite, Pull, Segment
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.turn_record import TurnRecord
from potluck.model.pull_deltas import PullRequest
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

    def open_turns(self, idle: list[str], wanted: int, active: Sequence[TurnRecord] = ()) -> list[TurnRecord]:
        """Invite at most `wanted` of the idle devices, chosen at random; first those that should finish first.

        Devices with an active turn may have to send samples to the invited ones.
        """
        if wanted < len(idle):
            chosen = self._node.rng("invite", self._progress.turn).choice(len(idle), wanted, replace=False)
            idle = [idle[index] for index in sorted(chosen)]
        order = sorted(idle, key=lambda device: (self._context.expected_turn_s(device), device))
        return self._open_with_gifts(order, active, ahead=False)

    def open_draft_turns(self, devices: Sequence[str]) -> list[TurnRecord]:
        """Invite these devices to the next round, which begins on a draft."""
        return self._open_with_gifts(devices, (), ahead=True)

    def _open_with_gifts(self, devices: Sequence[str], active: Sequence[TurnRecord], ahead: bool) -> list[TurnRecord]:
        gifts = self._plan_gifts(devices, [*devices, *(turn.device for turn in active)])
        turns = [turn for device in devices if (turn := self._open_turn(device, gifts, ahead)) is not None]
        self._send_orders(gifts, [*active, *turns])
        return turns

    def _plan_gifts(self, receivers: Sequence[str], devices: Iterable[str]) -> Sequence[SampleTransfer]:
        """Which device sends samples to which receiver, given the batches of their latest turns."""
        progress, sharing = self._progress, self._context.sharing
        batches = {device: progress.batches[device] for device in devices if device in progress.batches}
        return sharing.plan_gifts(receivers, batches, progress.turn) if sharing is not None and batches else ()

    def _send_orders(self, gifts: Sequence[SampleTransfer], turns: Sequence[TurnRecord]) -> None:
        """Tell every donor what to send."""
        sharing, numbers = self._context.sharing, {turn.device: turn.number for turn in turns}
        orders: dict[str, dict[str, list[tuple[int, int]]]] = {}  # by donor and receiver
        for donor, receiver, samples, label in gifts:
            if donor in numbers and receiver in numbers:
                orders.setdefault(donor, {}).setdefault(receiver, []).append((label or 0, samples))
        for donor, by_receiver in orders.items():
            assert sharing is not None
            given = tuple(GiftOrder(to, numbers[to], tuple(amounts)) for to, amounts in by_receiver.items())
            self._node.send(donor, Give(numbers[donor], given, sharing.injection.by_class))

    def _open_turn(self, device: str, gifts: Sequence[SampleTransfer], ahead: bool) -> TurnRecord | None:
        """Invite a device to this round or, `ahead`, to the next one; None if it is not connected."""
        progress, incarnation = self._progress, self._roster.incarnation_of(device)
        if incarnation is None:
            return None
        round, count = progress.round + ahead, progress.counts.get(device, 0)
        own = [gift for gift in gifts if gift.receiver == device]
        donors, gets = len({gift.donor for gift in own}), sum(gift.samples for gift in own)
        drops, pushed = progress.lr_drops("local_schedule"), progress.pushed.pop(device, ())
        segments = () if progress.push_order is None else progress.push_order.segments_for(device)
        invite = Invite(progress.turn, round, count, donors, gets, ahead, drops, pushed, segments)
        turn = TurnRecord(invite, device, incarnation, self._node.now())
        turn.start_from(self._backend.pulled_state, progress.version)
        turn.submodel = self._backend.select_submodel(TurnIdentity(device, round, count))
        progress.turn += 1
        progress.counts[device] = count + 1
        self._node.send(device, turn.invite)
        return turn

    def send_segment(self, turn: TurnRecord, pull: Pull, state: Any, queued: bool = False) -> Awaitable[None] | None:
        """Send the requested layers of a version; None if they are already in flight."""
        sending = turn.pending_sends.get(pull.first)
        if sending is not None and not sending.done():
            return None
        version = turn.version + 1  # counted from 1, since 0 says that a device holds none
        request = PullRequest(pull.first, pull.last, version, pull.held)
        payload, base = self._backend.encode_segment(state, turn.submodel, request)
        segment = Segment(
            payload,
            turn=pull.turn,
            first=pull.first,
            last=pull.last,
            queued=queued or turn.is_sending,
            version=version,
            base=base,
        )
        self._progress.bytes_sent += segment.nbytes
        sent = self._node.send(turn.device, segment)
        turn.track_send(pull.first, sent)
        return sent
