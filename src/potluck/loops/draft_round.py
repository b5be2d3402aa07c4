"""Duplex transfers, on the coordinator: the next round begins on a draft while this round's updates still arrive.

    push   layer L ─ … ─ 1      every device, as its gradients get ready
    step        layer L ─ … ─ 1      once all have pushed it
    pull             layer L ─ … ─ 1      for the next round, on the other direction of the link

A segment returns as soon as it is merged, without being asked for: a request would wait behind the updates that fill
the link. All devices cut their updates alike and push them in one order, that of the device which is expected to finish
last; otherwise a layer that one pushes first and another last would return late.

The draft is a copy of the model that is stepped layer by layer. If every update arrives, it becomes the next version at
the commit. If a device is lost or refused on the way, the draft is discarded, its invitations are withdrawn, and the
round commits as usual from the updates that are complete.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Sequence
from typing import Any

from potluck.loops.messages import Pull, Release
from potluck.loops.node import Node
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.run_progress import PushOrder
from potluck.loops.turn_dispatcher import TurnDispatcher
from potluck.loops.turn_record import TurnRecord

__all__ = ["DraftRound", "DraftVersion"]


class DraftVersion:
    """The next version while it is being made, and the pulls that wait for its layers."""

    def __init__(self, draft: Any, turns: Sequence[TurnRecord], layers: int) -> None:
        self.model_draft = draft
        self._turns = list(turns)  # of the open round, in the order of merging
        self._unmerged_layers = set(range(layers))
        self._deferred_pulls: dict[tuple[str, int], Pull] = {}
        self._returned: set[tuple[str, int]] = set()  # segments by device and first layer

    @property
    def is_complete(self) -> bool:
        return not self._unmerged_layers

    @property
    def samples(self) -> int:
        return sum(turn.samples for turn in self._turns)

    @property
    def device_count(self) -> int:
        return len(self._turns)

    def device_names(self) -> list[str]:
        """The devices of the open round, in the order of merging."""
        return [turn.device for turn in self._turns]

    def ready_ranges(self) -> list[tuple[int, int]]:
        """Ranges of layers that every device has pushed and that are not merged yet, from the last to the first."""
        ready = sorted(
            (layer for layer in self._unmerged_layers if all(turn.covers_layer(layer) for turn in self._turns)),
            reverse=True,
        )
        ranges: list[tuple[int, int]] = []
        for layer in ready:
            if ranges and ranges[-1][0] == layer + 1:
                ranges[-1] = (layer, ranges[-1][1])
            else:
                ranges.append((layer, layer))
        return ranges

    def merge_layers(self, first: int, last: int, lr_factor: float) -> None:
        """Merge a range of layers and take the optimizer step on it."""
        updates = [(turn.segments, turn.samples) for turn in self._turns]
        self.model_draft.step(first, last, updates, lr_factor)
        self._unmerged_layers -= set(range(first, last + 1))

    def has_layers(self, pull: Pull) -> bool:
        return self._unmerged_layers.isdisjoint(range(pull.first, pull.last + 1))

    def defer_pull(self, device: str, pull: Pull) -> None:
        """Answer the pull once its layers are merged."""
        self._deferred_pulls[device, pull.first] = pull

    def pop_answerable_pulls(self) -> list[tuple[str, Pull]]:
        """The deferred pulls whose layers are merged now."""
        answerable = [(device, pull) for (device, _), pull in self._deferred_pulls.items() if self.has_layers(pull)]
        for device, pull in answerable:
            del self._deferred_pulls[device, pull.first]
        return answerable

    def pop_returning_segments(self) -> list[tuple[str, int, int]]:
        """The device and layers of each pushed segment that is merged now and can return."""
        returning = [
            (turn.device, segment.first, segment.last)
            for turn in self._turns
            for segment in turn.segments
            if (turn.device, segment.first) not in self._returned
            and self._unmerged_layers.isdisjoint(range(segment.first, segment.last + 1))
        ]
        self._returned.update((device, first) for device, first, _ in returning)
        return returning

    def push_order(self) -> PushOrder:
        """How the device that is expected to finish last has pushed."""
        last = self._turns[-1]
        return PushOrder(last.device, tuple((segment.first, segment.last) for segment in last.segments))

    def forget_device(self, device: str) -> None:
        self._deferred_pulls = {key: pull for key, pull in self._deferred_pulls.items() if key[0] != device}


class DraftRound:
    """The draft of the next round and its turns; empty unless transfers are duplex."""

    def __init__(self, node: Node, context: RoundsContext, dispatcher: TurnDispatcher) -> None:
        self._node = node
        self._context = context
        self._backend = context.backend
        self._dispatcher = dispatcher
        self._retry_s = float(context.settings.retry)
        self.draft: DraftVersion | None = None
        self.turns: dict[str, TurnRecord] = {}  # of the next round
        self._queued_segments: dict[str, list[tuple[int, int, TurnRecord, Pull, Any]]] = {}  # by device
        self._resend_after: dict[tuple[int, int], float] = {}  # by turn and first layer
        self._busy: set[str] = set()  # devices to which a segment is in flight
        self._complete_updates: list[TurnRecord] = []  # of this round, in order, in case the draft is discarded

    def begin_draft(self, turns: list[TurnRecord]) -> None:
        """Start a draft for the round that has just begun."""
        self.draft = DraftVersion(self._backend.start_draft(), turns, self._context.layers)

    def keep_update(self, turn: TurnRecord) -> bool:
        """Whether a complete update need not be merged now because its layers are merged one by one."""
        if self.draft is None:
            return False
        self._complete_updates.append(turn)
        return True

    def merge_ready_layers(self) -> None:
        """Merge the layers that every device has pushed, and answer the pulls that waited for them."""
        draft = self.draft
        if draft is None:
            return
        for first, last in draft.ready_ranges():
            draft.merge_layers(first, last, self._context.learning_rate_factor(draft.samples, draft.device_count))
            if not self.turns:
                self._invite_devices(draft)
        for device, first, last in draft.pop_returning_segments():
            turn = self.turns.get(device)
            if turn is not None:
                self._queue_segment(turn, Pull(turn.number, first, last), draft.model_draft.state)
        for device, pull in draft.pop_answerable_pulls():
            self._queue_segment(self.turns[device], pull, draft.model_draft.state)

    def _queue_segment(self, turn: TurnRecord, pull: Pull, state: Any) -> None:
        """Send a segment once the one in flight to the device has left.

        Of those that wait, the nearest to the input goes first, since the next forward pass needs it first. A pull that
        is repeated while its answer waits or has just left is ignored: requests are repeated until the answer arrives.
        """
        key, now = (turn.number, pull.first), self._node.now()
        if now < self._resend_after.get(key, 0.0):
            return
        self._resend_after[key] = math.inf
        heapq.heappush(self._queued_segments.setdefault(turn.device, []), (pull.first, turn.number, turn, pull, state))
        self._send_next(turn.device)

    def _send_next(self, device: str, queued: bool = False) -> None:
        waiting = self._queued_segments.get(device)
        if not waiting or device in self._busy:
            return
        _, _, turn, pull, state = heapq.heappop(waiting)
        sending = self._dispatcher.send_segment(turn, pull, state, queued)
        key = (turn.number, pull.first)
        if isinstance(sending, asyncio.Future) and not sending.done():
            self._busy.add(device)
            sending.add_done_callback(lambda _: self._on_segment_sent(device, key))
        else:
            self._on_segment_sent(device, key)

    def _on_segment_sent(self, device: str, key: tuple[int, int]) -> None:
        self._resend_after[key] = self._node.now() + self._retry_s
        self._busy.discard(device)
        self._send_next(device, queued=True)

    def _invite_devices(self, draft: DraftVersion) -> None:
        for turn in self._dispatcher.open_draft_turns(draft.device_names()):
            self.turns[turn.device] = turn

    def answer_pull(self, turn: TurnRecord, pull: Pull) -> None:
        """Answer a pull of a turn that began on a draft."""
        if turn is not self.turns.get(turn.device):
            self._queue_segment(turn, pull, turn.state)  # its round has begun meanwhile
        elif self.draft is not None and self.draft.has_layers(pull):
            self._queue_segment(turn, pull, self.draft.model_draft.state)
        elif self.draft is not None:
            self.draft.defer_pull(turn.device, pull)

    def remove_device(self, device: str, unfinished: bool) -> None:
        """Drop a lost device's next turn, and the whole draft if its update was unfinished."""
        self._queued_segments.pop(device, None)
        turn = self.turns.pop(device, None)
        if turn is not None:
            turn.cancel_sends()
        if self.draft is not None:
            self.draft.forget_device(device)
            if unfinished:
                self.discard_draft()

    def discard_draft(self) -> None:
        """Withdraw the invitations; the round is merged as usual."""
        for turn in self.turns.values():
            turn.cancel_sends()
            self._node.send(turn.device, Release(turn.number, only=True))
        self.draft = None
        self.turns.clear()
        self._queued_segments.clear()

    def commit_draft(self) -> bool | None:
        """Adopt the draft as the next version if it is complete; otherwise merge the updates that were kept.

        Whether the next version is finite; None if it is still to be made from these updates.
        """
        draft, kept = self.draft, self._complete_updates
        self.draft, self._complete_updates = None, []
        if draft is not None and draft.is_complete:
            self._context.progress.push_order = draft.push_order()
            return self._backend.adopt_draft(draft.model_draft)
        for turn in kept:
            self._backend.add_update(turn.segments, turn.submodel, turn.samples, 0, turn.scale)
        return None

    def pop_turns(self) -> dict[str, TurnRecord]:
        """The turns of the round that begins now."""
        turns, self.turns = self.turns, {}
        current = {turn.number for turn in turns.values()}
        self._resend_after = {key: until for key, until in self._resend_after.items() if key[0] in current}
        for turn in turns.values():
            turn.start_from(self._backend.pulled_state, self._context.progress.version)
        return turns
