"""Moves layers between the coordinator's archive and the stages: fetches, copies, and what they make secure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping

from potluck.loops.leader import Leader
from potluck.loops.pipeline.message_checks import layers_refusal, replica_refusal
from potluck.loops.pipeline.messages import Fetch, Kept, Piece, Replica, Secure
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.pipeline_members import PipelineMembers
from potluck.loops.pipeline.term_requests import TermRequests
from potluck.loops.pipeline.term_state import TermProgress, TermState

__all__ = ["ArchiveSync"]


class ArchiveSync:
    """Fetches layers into the archive and serves layers from it. A device that sends unusable ones is refused."""

    def __init__(
        self,
        leader: Leader,
        context: PipelineContext,
        term: TermState,
        members: PipelineMembers,
        requests: TermRequests,
    ) -> None:
        self._leader = leader
        self._node = leader.node
        self._context = context
        self._archive = context.archive
        self._layers = context.planner.layer_count
        self._term = term
        self._members = members
        self._requests = requests
        self._fetches: set[tuple[str, Fetch]] = set()  # of this term: the device and what it was asked for
        self._sends: dict[tuple[str, int], Awaitable[None]] = {}

    def begin_term(self) -> None:
        """Drop incomplete versions: layers of different terms do not fit together."""
        self._fetches.clear()
        self._sends.clear()
        self._archive.begin_term()

    @property
    def newest_possible_version(self) -> int:
        """The newest version that any device can hold."""
        return max(self._term.range_end, self._context.progress.round, self._archive.version)

    # --- into the archive ------------------------------------------------------------------------------------------

    async def archive_stages(self, progress: TermProgress) -> None:
        """Fetch the committed version from all stages."""
        version = self._context.progress.round
        made = self._term.history.term_that_made(version)
        if self._archive.version == version and self._archive.made_in_term == made:
            return
        stages = zip(progress.plan.order, progress.plan.stage_layers, strict=True)
        await self.fetch_layers(
            {name: Fetch(self._term.number, layers[0], layers[-1], version) for name, layers in stages}
        )

    async def fetch_layers(self, requests: Mapping[str, Fetch]) -> None:
        self._fetches.update(requests.items())
        await self._requests.request_answers(requests)

    def receive_layers(self, sender: str, piece: Piece) -> None:
        """Archive layers that were asked for."""
        request = Fetch(self._term.number, piece.first, piece.last, piece.version)
        if (sender, request) not in self._fetches:
            return
        reason = self._archive.weights_refusal(piece.first, piece.last, piece.payload)
        if reason is not None:
            self._members.refuse_device(sender, reason)
            return
        if self._term.pending.requests.get(sender) == request:
            self._term.pending.record_answer(sender, piece)
        made = self._term.history.term_that_made(piece.version)
        self._announce_archived(self._archive.add_layers(piece.version, made, piece.first, piece.last, piece.payload))

    def receive_copy(self, sender: str, replica: Replica) -> None:
        """Archive a chunk of a copy, and acknowledge the copy once it is complete."""
        reason = self._copy_refusal(sender, replica)
        outcome = self._archive.receive_copy(sender, replica) if reason is None else reason
        if isinstance(outcome, str):
            self._members.refuse_device(sender, outcome)
        elif outcome is not None:
            self._node.send(sender, Kept(self._term.number, replica.first, replica.last, replica.version))
            self._announce_archived(outcome)

    def _copy_refusal(self, sender: str, replica: Replica) -> str | None:
        """Why a chunk of a copy cannot go into the archive."""
        reason = replica_refusal(replica, self._layers)
        if reason is not None:
            return reason
        layout = self._term.layout
        stages = dict(zip(layout.order, layout.stage_layers, strict=True)) if layout is not None else {}
        if stages.get(sender) != range(replica.first, replica.last + 1) or replica.step:
            return f"it sent a copy of layers {replica.first} to {replica.last}, which are not its own"
        made = self._term.history.term_that_made(replica.version)
        if replica.version > self.newest_possible_version or replica.made != made:
            return f"it sent a copy of version {replica.version}, which term {replica.made} cannot have made"
        return None

    # --- from the archive ------------------------------------------------------------------------------------------

    def send_layers(self, sender: str, fetch: Fetch) -> None:
        """Send layers of the archive, unless they are already in flight."""
        if (reason := layers_refusal(fetch.first, fetch.last, self._layers)) is not None:
            self._members.refuse_device(sender, reason)
            return
        sending = self._sends.get((sender, fetch.first))
        if isinstance(sending, asyncio.Future) and not sending.done():
            return
        if fetch.version != self._archive.version:
            self._term.is_broken = True
            return
        payload = self._archive.pack_layers(fetch.first, fetch.last)
        piece = Piece(payload, term=self._term.number, first=fetch.first, last=fetch.last, version=fetch.version)
        self._context.progress.bytes_sent += piece.nbytes
        self._sends[sender, fetch.first] = self._node.send(sender, piece)

    # --- secure versions -------------------------------------------------------------------------------------------

    def record_copy(self, sender: str, kept: Kept) -> None:
        """A device confirms a copy; only the stage's own replica holder counts."""
        progress = self._term.progress
        if progress is None or not progress.start_version <= kept.version <= self.newest_possible_version:
            return
        holders = zip(progress.plan.stage_layers, progress.plan.replica_holders, strict=False)
        if (range(kept.first, kept.last + 1), sender) in holders and progress.record_copy(kept):
            self._announce_secure_version(progress.secure_version)

    def _announce_archived(self, is_complete: bool) -> None:
        progress, version = self._term.progress, self._archive.version
        if is_complete and progress is not None and progress.advance_secure_version(version):
            self._announce_secure_version(version)

    def _announce_secure_version(self, version: int) -> None:
        for device in self._leader.roster:
            self._node.send(device, Secure(self._term.number, version))
