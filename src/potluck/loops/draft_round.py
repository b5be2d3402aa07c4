"""The coordinator's part in duplex transfers: the next round's turns begin while this round's updates come in."""

from __future__ import annotations

import asyncio
import heapq
import math
from typing import TYPE_CHECKING, Any

from potluck.loops.draft_version import DraftVersion
from potluck.loops.messages import Pull, Release
from potluck.loops.run_progress import TurnRecord

if TYPE_CHECKING:
    from potluck.loops.rounds import RoundsCoordinator

__all__ = ["DraftRound"]


class DraftRound:
    """What is under way for the next round; nothing, unless transfers are duplex."""

    def __init__(self, coordinator: RoundsCoordinator) -> None:
        self._coordinator = coordinator
        self.draft: DraftVersion | None = None
        self.turns: dict[str, TurnRecord] = {}  # of the next round
        self._queued_segments: dict[str, list[tuple[int, int, TurnRecord, Pull, Any]]] = {}  # segments, by device
        self._resend_after: dict[tuple[int, int], float] = {}  # (turn, first layer) → until when it is not sent again
        self._busy: set[str] = set()  # devices to which a segment is on its way
        self._complete_updates: list[
            TurnRecord
        ] = []  # whole updates of this round, in order, in case it has to be merged after all

    def begin_draft(self, turns: list[TurnRecord], layers: int) -> None:
        """A round has begun; nothing runs ahead of one after which the run shall come to rest."""
        self.draft = DraftVersion(self._coordinator.backend.start_draft(), turns, layers)

    def keep_update(self, turn: TurnRecord) -> bool:
        """Whether a whole update need not be merged now, since its layers are merged one by one."""
        if self.draft is None:
            return False
        self._complete_updates.append(turn)
        return True

    def merge_ready_layers(self) -> None:
        """More layers have come in: merge what everyone has sent, and pass it on."""
        ahead, coordinator = self.draft, self._coordinator
        if ahead is None:
            return
        for first, last in ahead.ready_ranges():
            ahead.merge_layers(first, last, coordinator.learning_rate_factor(ahead.samples, ahead.device_count))
            if not self.turns:
                self._invite_devices(ahead)
        for device, pull in ahead.pop_answerable_pulls():
            self._queue_segment(self.turns[device], pull, ahead.model_draft.state)

    def _queue_segment(self, turn: TurnRecord, pull: Pull, state: Any) -> None:
        """Send a segment, or let it wait for the one on its way: of those that wait, the nearest to the input goes
        first, since the next forward pass needs it first. Asked again while it waits, or just after it left, means
        nothing: requests are repeated until the answer is there."""
        key, now = (turn.number, pull.first), self._coordinator.node.now()
        if now < self._resend_after.get(key, 0.0):
            return
        self._resend_after[key] = math.inf
        heapq.heappush(self._queued_segments.setdefault(turn.device, []), (pull.first, turn.number, turn, pull, state))
        self._send_next(turn.device)

    def _send_next(self, device: str) -> None:
        waiting = self._queued_segments.get(device)
        if not waiting or device in self._busy:
            return
        _, _, turn, pull, state = heapq.heappop(waiting)
        sending = self._coordinator.send_segment(turn, pull, state)
        key = (turn.number, pull.first)
        if isinstance(sending, asyncio.Future) and not sending.done():
            self._busy.add(device)
            sending.add_done_callback(lambda _: self._on_segment_sent(device, key))
        else:
            self._on_segment_sent(device, key)

    def _on_segment_sent(self, device: str, key: tuple[int, int]) -> None:
        self._resend_after[key] = self._coordinator.node.now() + self._coordinator.retry_s
        self._busy.discard(device)
        self._send_next(device)

    def _invite_devices(self, ahead: DraftVersion) -> None:
        for device in ahead.device_names():
            turn = self._coordinator.make_turn(device, ahead=True)
            if turn is not None:
                self.turns[device] = turn

    def answer_pull(self, turn: TurnRecord, pull: Pull) -> None:
        """A request of a turn that began ahead."""
        if turn is not self.turns.get(turn.device):
            self._queue_segment(turn, pull, turn.state)  # its round has come
        elif self.draft is not None and self.draft.has_layers(pull):
            self._queue_segment(turn, pull, self.draft.model_draft.state)
        elif self.draft is not None:
            self.draft.defer_pull(turn.device, pull)

    def remove_device(self, device: str, unfinished: bool) -> None:
        """A device is gone: its own next turn, and all that runs ahead if its update was not whole."""
        self._queued_segments.pop(device, None)
        turn = self.turns.pop(device, None)
        if turn is not None:
            turn.cancel_sends()
        if self.draft is not None:
            self.draft.forget_device(device)
            if unfinished:
                self.discard_draft()

    def discard_draft(self) -> None:
        """Take the invitations back; the round will be merged as it always is."""
        for turn in self.turns.values():
            turn.cancel_sends()
            self._coordinator.node.send(turn.device, Release(turn.number, only=True))
        self.draft = None
        self.turns.clear()
        self._queued_segments.clear()

    def commit_draft(self) -> bool:
        """At the commit: whether the next version is made already."""
        ahead, kept = self.draft, self._complete_updates
        self.draft, self._complete_updates = None, []
        mathematics = self._coordinator.backend
        if ahead is not None and ahead.is_complete:
            mathematics.adopt_draft(ahead.model_draft)
            return True
        for turn in kept:
            mathematics.add_update(turn.segments, turn.submodel, turn.samples, 0)
        return False

    def pop_turns(self) -> dict[str, TurnRecord]:
        """The next round is this round now."""
        turns, self.turns = self.turns, {}
        current = {turn.number for turn in turns.values()}
        self._resend_after = {key: until for key, until in self._resend_after.items() if key[0] in current}
        for turn in turns.values():
            turn.state = self._coordinator.backend.state
            turn.version = self._coordinator.progress.version
        return turns
