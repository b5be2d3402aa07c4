"""How a term begins: all stop and tell what they have, a version and a layout are chosen, layers are handed out.

And how it ends where a device died: what had passed it on its way back is applied by those before it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping

from potluck.errors import UserError
from potluck.journal import Span
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR, Node
from potluck.loops.pipeline.layer_sources import HeldLayers, newest_complete_version, plan_layer_sources
from potluck.loops.pipeline.message_checks import layers_refusal, replica_refusal
from potluck.loops.pipeline.messages import Assign, Fetch, Finish, Halt, Inventory, Kept, Piece, Replica, Secure
from potluck.loops.pipeline.pipeline_leader import PipelineContext, PipelineLeader
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.term_history import TermHistory
from potluck.loops.pipeline.term_progress import TermProgress
from potluck.loops.run_progress import RunOutcome

__all__ = ["TermLeader"]

_SILENCE = 4  # times `retry`, after which a new term begins without those who do not answer


class TermLeader(PipelineLeader):
    """Begins terms, and keeps the archive that is the last resort where layers are lost."""

    def __init__(self, node: Node, orders: PipelineContext) -> None:
        super().__init__(node, orders)
        self._planner = orders.planner
        self._archive = orders.archive
        self._policy = orders.policy
        self._batch_samples = orders.batch_samples
        self._history = TermHistory()
        self._range_end = 0  # of the stretch: no batch beyond it was ever let in
        self._fetch_requests: set[tuple[str, Fetch]] = set()  # what this term asked for, of whom
        self._layout: PipelinePlan | None = None  # of the term, from when it is handed out
        self._term_members: set[str] = set()  # who has entered the term
        self._term_progress: TermProgress | None = None  # of the term that runs
        self._last_plan: PipelinePlan | None = None
        self._secure_version = 0
        self._replan_wanted = False  # another layout pays
        self._loss_noticed_at = math.inf  # when a death will be noticed, where only the batch timer tells
        self._committed_at = 0.0
        self._layer_sends: dict[tuple[str, int], Awaitable[None]] = {}

    async def _begin_term(self) -> RunOutcome | None:
        """Begin a term; if someone is lost on the way, `_disturbed` stays set and it must be tried again."""
        began, after_death = self._node.now(), self._needs_new_term
        self._planner.clear_loss_plans() if not after_death else None
        held = await self._collect_inventories()
        there = self._candidate_devices(self._term_members)
        if self._needs_new_term or not there:
            self._needs_new_term = True
            return self._stall_outcome()
        try:
            plan = self._settings.recovery.plan_recovery(self._planner, self._last_plan if after_death else None, there)
        except UserError as error:
            return RunOutcome("failed", f"no layout for {', '.join(there)}: {error}")
        self._plan_for_losses(there)
        self._layout = plan = self._planner.place_copies(plan, there)
        version, mixed = self._choose_version(held, after_death)
        await self._request_answers(self._make_assignments(plan, held, version, mixed))
        if self._needs_new_term:
            return self._stall_outcome()
        self._restart_from(version)
        self._term_progress = TermProgress(
            plan, version, max(min(self._secure_version, version), self._archive.version)
        )
        self._last_plan = plan
        self._record_layout(plan, version, began, after_death)
        return None

    async def _collect_inventories(self) -> list[HeldLayers]:
        """Begin a new term: everybody stops, and tells what it has."""
        self._secure_version = self._term_progress.secure_version if self._term_progress is not None else 0
        self._needs_new_term, self._loss_noticed_at, self._replan_wanted = False, math.inf, False
        self._term_progress = self._layout = None
        self._fetch_requests.clear()
        self._layer_sends.clear()
        self._term += 1
        self._archive.begin_term()
        halt = Halt(self._term, self._history.terms)
        halts: dict[str, Message] = {device: halt for device in self._roster if device not in self._quarantine}
        answers = await self._request_answers(halts, _SILENCE * float(self._settings.retry))
        self._term_members = {device for device in answers if device in self._roster}
        stock = [answer.held for device, answer in answers.items() if isinstance(answer, Inventory)]
        archived = HeldLayers(
            COORDINATOR, 0, self._planner.layer_count - 1, self._archive.version, self._archive.made_in_term
        )
        return [*(each for held in stock for each in held), archived]

    def _choose_version(self, held: list[HeldLayers], after_death: bool) -> tuple[int, bool]:
        """The version to go on from, and whether layers may be of other versions than that."""
        if after_death and self._settings.recovery.restores_checkpoint:
            held[:] = held[-1:]
        if after_death and not self._settings.recovery.consistent:
            return self.progress.round, True
        version = newest_complete_version(held, self._planner.layer_count)
        assert version is not None, "the archive is whole"
        return version, False

    def _make_assignments(
        self, plan: PipelinePlan, held: list[HeldLayers], version: int, mixed: bool
    ) -> dict[str, Message]:
        made = self._history.term_that_made(version)
        return {
            device: Assign(
                self._term, plan.cuts, plan.order, plan.windows, plan.stride, plan.keepers, version, made,
                tuple(plan_layer_sources(held, device, layers, None if mixed else version)),
            )
            for device, layers in zip(plan.order, plan.stage_layers, strict=True)
        }  # fmt: skip

    def _restart_from(self, version: int) -> None:
        """From here on, this version is where the run stands."""
        if version < self.progress.round:
            self._journal.record_event(
                self._node.name, "rolled back", term=self._term, before=self.progress.round, to=version
            )
        for batch in range(self.progress.round, version):  # the reports of it were still on their way
            self._journal.record_event(
                self._node.name, "committed", batch=batch, term=self._history.term_that_made(batch + 1)
            )
        self._history.begin_term(self._term, version)
        self.progress.turn = self._term
        self._set_version(version)

    def _set_version(self, version: int) -> None:
        self.progress.round = self.progress.version = version
        self.progress.samples = version * self._batch_samples
        self._committed_at = self._node.now()

    def _record_layout(self, plan: PipelinePlan, version: int, began: float, after_death: bool) -> None:
        fields = {"term": self._term, "version": version, "cuts": list(plan.cuts), "order": list(plan.order)}
        self._node.record(
            Span(self._node.name, "recover" if after_death else "settle", began, self._node.now(), fields)
        )
        more = {
            "windows": list(plan.windows),
            "period": plan.period,
            "stride": plan.stride,
            "keepers": list(plan.keepers),
        }
        self._journal.record_event(self._node.name, "partition", **fields, **more)

    def _plan_for_losses(self, candidates: list[str]) -> None:
        """Have plans ready for each single death."""
        self._planner.plan_for_losses(candidates, self._candidate_devices(candidates[1:]))

    async def _finish_in_flight(self) -> RunOutcome | None:
        """Let those before the dead apply what had passed it: then it need not be done again."""
        ledger, recovery = self._term_progress, self._settings.recovery
        if ledger is None or not recovery.consistent or recovery.restores_checkpoint:
            return None
        told: set[str] = set()
        longest = len(ledger.plan.order) * self._planner.current_period_s(ledger.plan)
        ends_at = min(self._node.now() + longest, self._stall_timeout.expires_at)
        while (waiting := ledger.unfinished_stages()) and self._node.now() < ends_at:
            for device in waiting:
                if device not in told:
                    self._node.send(device, Finish(self._term))
            told.update(waiting)
            envelope = await self._node.receive(ends_at)
            if envelope is not None:
                self._handle_message(envelope)
        return self._stall_outcome()

    # --- the archive -----------------------------------------------------------------------------------------------

    async def _rescue_model(self) -> None:
        """The data is out of reach: save the newest version that the others can put together."""
        held = await self._collect_inventories()
        version = newest_complete_version(held, self._planner.layer_count)
        if version is None or version <= self._archive.version:
            return
        self._restart_from(version)
        givers: dict[str, list[Fetch]] = {}
        for origin in plan_layer_sources(held, COORDINATOR, range(self._planner.layer_count), version):
            request = Fetch(self._term, origin.first, origin.last, version)
            givers.setdefault(origin.device, []).append(request)
        while givers and not self._needs_new_term:
            await self._fetch_layers({device: requests.pop() for device, requests in givers.items()})
            givers = {device: requests for device, requests in givers.items() if requests}
        if self._archive.version == version:
            self._policy.save_model(self._archive.weights, self.progress, self._node.now())

    async def _archive_stages(self, ledger: TermProgress) -> None:
        """Bring the version at which all stages stand into the archive."""
        version = self.progress.round
        if self._archive.version == version and self._archive.made_in_term == self._history.term_that_made(version):
            return
        stages = zip(ledger.plan.order, ledger.plan.stage_layers, strict=True)
        await self._fetch_layers({name: Fetch(self._term, layers[0], layers[-1], version) for name, layers in stages})

    async def _fetch_layers(self, requests: Mapping[str, Fetch]) -> None:
        self._fetch_requests.update(requests.items())
        await self._request_answers(requests)

    def _receive_layers(self, sender: str, piece: Piece) -> None:
        """Layers that were asked for, if they can be used."""
        request = Fetch(self._term, piece.first, piece.last, piece.version)
        if (sender, request) not in self._fetch_requests:
            return
        reason = self._archive.weights_refusal(piece.first, piece.last, piece.payload)
        if reason is not None:
            self._refuse_device(sender, reason)
            return
        if self._open_requests.get(sender) == request:
            self._record_answer(sender, piece)
        made = self._history.term_that_made(piece.version)
        self._advance_secure_version(
            self._archive.add_layers(piece.version, made, piece.first, piece.last, piece.payload)
        )

    def _send_layers(self, sender: str, fetch: Fetch) -> None:
        """Send layers of the archive, unless they are on their way."""
        if (reason := layers_refusal(fetch.first, fetch.last, self._planner.layer_count)) is not None:
            self._refuse_device(sender, reason)
            return
        sending = self._layer_sends.get((sender, fetch.first))
        if isinstance(sending, asyncio.Future) and not sending.done():
            return
        if fetch.version != self._archive.version:
            self._needs_new_term = True
            return
        payload = self._archive.pack_layers(fetch.first, fetch.last)
        piece = Piece(payload, term=self._term, first=fetch.first, last=fetch.last, version=fetch.version)
        self.progress.bytes_sent += piece.nbytes
        self._layer_sends[sender, fetch.first] = self._node.send(sender, piece)

    def _receive_copy(self, sender: str, replica: Replica) -> None:
        reason = self._copy_refusal(sender, replica)
        whole = self._archive.receive_copy(sender, replica) if reason is None else reason
        if isinstance(whole, str):
            self._refuse_device(sender, whole)
        elif whole is not None:
            self._node.send(sender, Kept(self._term, replica.first, replica.last, replica.version))
            self._advance_secure_version(whole)

    def _copy_refusal(self, sender: str, replica: Replica) -> str | None:
        """Why a piece of a copy has no place in the archive."""
        reason = replica_refusal(replica, self._planner.layer_count)
        if reason is not None:
            return reason
        stages = (
            dict(zip(self._layout.order, self._layout.stage_layers, strict=True)) if self._layout is not None else {}
        )
        if stages.get(sender) != range(replica.first, replica.last + 1) or replica.step:
            return f"it sent a copy of layers {replica.first} to {replica.last}, which are not its own"
        if replica.version > self._newest_possible_version or replica.made != self._history.term_that_made(
            replica.version
        ):
            return f"it sent a copy of version {replica.version}, which term {replica.made} cannot have made"
        return None

    @property
    def _newest_possible_version(self) -> int:
        """The newest version that anyone can have."""
        return max(self._range_end, self.progress.round, self._archive.version)

    def _record_inventory(self, sender: str, inventory: Inventory) -> None:
        """What a device says that it has, if it can have that."""
        if self._answers is None or not isinstance(self._open_requests.get(sender), Halt):
            return  # said twice
        for held in inventory.held:
            reason = layers_refusal(held.first, held.last, self._planner.layer_count)
            honest = held.device == sender and 0 <= held.version <= self._newest_possible_version
            if reason is None and not (honest and held.made == self._history.term_that_made(held.version)):
                reason = f"it says that {held.device} has version {held.version} of term {held.made}"
            if reason is not None:
                self._refuse_device(sender, reason)
                return
        self._record_answer(sender, inventory)

    def _advance_secure_version(self, whole: bool) -> None:
        if (
            whole
            and self._term_progress is not None
            and self._term_progress.advance_secure_version(self._archive.version)
        ):
            self._announce_secure_version(self._archive.version)

    def _announce_secure_version(self, version: int) -> None:
        for device in self._roster:
            self._node.send(device, Secure(self._term, version))
