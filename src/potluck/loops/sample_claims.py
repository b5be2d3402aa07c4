"""What devices say about the number of their samples, and how much of it counts."""

from __future__ import annotations

from potluck.loops.leader import CoordinatorJournal
from potluck.loops.node import Node
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.turn_record import TurnRecord
from potluck.loops.turn_sizing import SampleLimit

__all__ = ["SampleClaims"]


class SampleClaims:
    """A device declares once in an incarnation what it holds; no update of it may claim more than that allows."""

    def __init__(self, node: Node, context: RoundsContext, journal: CoordinatorJournal) -> None:
        self._node = node
        self._context = context
        self._journal = journal
        self._declared: dict[str, tuple[int, int]] = {}  # by device: its incarnation, and what it holds
        self._cut: dict[str, int] = {}  # by device: the incarnation in which a claim of it was cut

    def declare_samples(self, device: str, incarnation: int, samples: int) -> None:
        """The first declaration of an incarnation counts."""
        known, _ = self._declared.get(device, (0, 0))
        if incarnation > known:
            self._declared[device] = (incarnation, samples)

    def refusal(self, turn: TurnRecord, samples: int) -> str | None:
        """Why an update cannot be of so many samples; None if it can."""
        limit = self._limit(turn).claimed
        if 1 <= samples <= limit:
            return None
        return f"it says that it trained on {samples} samples; in a turn it has 1 to {limit}"

    def counted_samples(self, turn: TurnRecord, samples: int) -> int:
        """For how many samples an update counts."""
        limit = self._limit(turn).counted
        if samples > limit and self._cut.get(turn.device) != turn.incarnation:
            self._cut[turn.device] = turn.incarnation
            self._journal.record_event(turn.device, "samples cut", claimed=samples, counted=limit)
        return min(samples, limit)

    def _limit(self, turn: TurnRecord) -> SampleLimit:
        incarnation, declared = self._declared.get(turn.device, (0, 0))
        limit = self._context.sample_limit(
            turn.device, declared if incarnation == turn.incarnation else None, turn.invited_at, self._node.now()
        )
        gifts = turn.invite.gets
        return SampleLimit(limit.claimed + gifts, max(limit.counted, 1) + gifts)
