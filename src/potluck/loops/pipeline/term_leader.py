"""Begins and ends the terms of a pipeline.

begin    all devices stop and list the layers they hold; a version and a layout are chosen; layers are handed out
finish   after a death: the stages before the dead one apply the batches that had already passed it
rescue   the data is out of reach: the remaining devices' newest version goes into the archive
"""

from __future__ import annotations

import math

from potluck.errors import UserError
from potluck.journal import Span
from potluck.loops.leader import Leader
from potluck.loops.messages import Message
from potluck.loops.node import COORDINATOR
from potluck.loops.pipeline.archive_sync import ArchiveSync
from potluck.loops.pipeline.compute_estimates import MeasuredLayers
from potluck.loops.pipeline.layer_sources import HeldLayers, newest_complete_version, plan_layer_sources
from potluck.loops.pipeline.message_checks import layers_refusal
from potluck.loops.pipeline.messages import Assign, Fetch, Finish, Halt, Inventory, Measure, Measured
from potluck.loops.pipeline.pipeline_context import PipelineContext
from potluck.loops.pipeline.pipeline_members import PipelineMembers
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.relayout_policy import RelayoutForecast, RelayoutPolicy
from potluck.loops.pipeline.term_requests import TermRequests
from potluck.loops.pipeline.term_state import TermProgress, TermState
from potluck.loops.run_progress import RunOutcome

__all__ = ["TermLeader"]

_MEASURE_RETRIES = 60  # times `retry` until a run goes on without a measurement of its layers
_MEASURE_PASSES = 50  # of the nominal time of a measurement, likewise
_INVENTORY_RETRIES = 4  # times `retry` until a term begins without the devices that do not answer


class TermLeader:
    """Leads from one layout to the next. A term that breaks while it begins has to be begun again."""

    def __init__(self, leader: Leader, context: PipelineContext, term: TermState, members: PipelineMembers) -> None:
        self._leader = leader
        self._node = leader.node
        self._journal = leader.journal
        self._context = context
        self._settings = context.settings
        self._planner = context.planner
        self._archive = context.archive
        self._progress = context.progress
        self._term = term
        self._members = members
        self.requests = TermRequests(leader, members, term, float(context.settings.retry))
        self.archive_sync = ArchiveSync(leader, context, term, members, self.requests)
        self._term_members: set[str] = set()  # the devices that have entered the term
        self._last_plan: PipelinePlan | None = None
        self._secure_version = 0
        self.relayout = RelayoutPolicy(context.settings.adaptation.horizon)
        self._has_measured = context.settings.layer_costs != "measured"
        self._moved_at: float | None = None  # when the last batch before a move was committed, until the next one is

    # --- begin -----------------------------------------------------------------------------------------------------

    async def begin_term(self) -> RunOutcome | None:
        """Begin a term; if a device is lost on the way, the term stays broken."""
        term, began, after_death = self._term, self._node.now(), self._term.is_broken
        committed_at, was_running = term.committed_at, term.progress is not None
        if not after_death:
            self._planner.clear_loss_plans()
            if self._has_settled():
                term.replan_wanted = False
                return None
        held = await self._collect_inventories()
        candidates = self._members.candidates(self._term_members)
        if term.is_broken or not candidates:
            term.is_broken = True
            return self._leader.stall_outcome()
        if self._wants_measurement(candidates):
            await self._measure_layers(candidates[0])
            if term.is_broken:
                return self._leader.stall_outcome()
        try:
            plan = self._plan_term(candidates, after_death)
        except UserError as error:
            return RunOutcome("failed", f"no layout for {', '.join(candidates)}: {error}")
        self._plan_for_losses(candidates)
        term.layout = plan = self._planner.place_copies(plan, candidates)
        version, mixed = self._choose_version(held, after_death)
        await self.requests.request_answers(self._make_assignments(plan, held, version, mixed))
        if term.is_broken:
            return self._leader.stall_outcome()
        self._restart_from(version)
        secure = max(min(self._secure_version, version), self._archive.version)
        term.progress = TermProgress(plan, version, secure)
        self._last_plan = plan
        self._moved_at = committed_at if was_running and not after_death else None
        self.relayout.begin_layout(moved=self._moved_at is not None)
        self._record_layout(plan, version, began, after_death)
        return None

    def _has_settled(self) -> bool:
        """Whether the layout that seemed worth moving to no longer is one, now that the pipeline has drained."""
        progress, candidates = self._term.progress, self._members.candidates()
        if progress is None or not candidates or not set(progress.plan.replica_holders) <= set(self._leader.roster):
            return False
        try:
            return self._planner.plan_layout(candidates).has_same_layout(progress.plan)
        except UserError:
            return False

    def _plan_term(self, candidates: list[str], after_death: bool) -> PipelinePlan:
        """The layout of the next term. If only a device that held copies is lost, it stays as it is."""
        last = self._last_plan
        if after_death and last is not None and last.order[0] == candidates[0] and set(last.order) <= set(candidates):
            return self._planner.plan_fixed_layout(last.cuts, last.order)
        return self._settings.recovery.plan_recovery(self._planner, last if after_death else None, candidates)

    async def _collect_inventories(self) -> list[HeldLayers]:
        """Stop all devices in a new term; the layers that they and the archive hold."""
        term, archive = self._term, self._archive
        self._secure_version = term.progress.secure_version if term.progress is not None else 0
        term.begin()
        self.archive_sync.begin_term()
        halt = Halt(term.number, term.history.terms)
        halts: dict[str, Message] = {
            device: halt for device in self._leader.roster if device not in self._members.quarantine
        }
        answers = await self.requests.request_answers(halts, _INVENTORY_RETRIES * float(self._settings.retry))
        self._term_members = {device for device in answers if device in self._leader.roster}
        inventories = [answer.held for answer in answers.values() if isinstance(answer, Inventory)]
        archived = HeldLayers(COORDINATOR, 0, self._planner.layer_count - 1, archive.version, archive.made_in_term)
        return [*(each for held in inventories for each in held), archived]

    def record_inventory(self, sender: str, inventory: Inventory) -> None:
        """Accept a device's inventory if it can be true; otherwise refuse the device."""
        pending = self._term.pending
        if not pending.is_open or not isinstance(pending.requests.get(sender), Halt):
            return  # it was sent twice
        for held in inventory.held:
            reason = layers_refusal(held.first, held.last, self._planner.layer_count)
            possible = held.device == sender and 0 <= held.version <= self.archive_sync.newest_possible_version
            if reason is None and not (possible and held.made == self._term.history.term_that_made(held.version)):
                reason = f"it says that {held.device} has version {held.version} of term {held.made}"
            if reason is not None:
                self._members.refuse_device(sender, reason)
                return
        pending.record_answer(sender, inventory)

    def _wants_measurement(self, candidates: list[str]) -> bool:
        """Whether the layers' costs are still to be measured, and more than one layout is possible."""
        stages = self._settings.schedule.most_stages or len(candidates)
        return not self._has_measured and min(stages, len(candidates), self._planner.layer_count) > 1

    async def _measure_layers(self, central: str) -> None:
        """Let the central device measure every layer, once in a run; without an answer in time, MACs have to do."""
        nominal_s = sum(self._planner.modelled_layers(central).both)
        max_s = max(_MEASURE_RETRIES * float(self._settings.retry), _MEASURE_PASSES * nominal_s)
        requests: dict[str, Message] = {central: Measure(self._term.number)}
        answer = (await self.requests.request_answers(requests, max_s)).get(central)
        if self._term.is_broken:
            return
        self._has_measured = True
        if isinstance(answer, Measured):
            measured = MeasuredLayers(answer.forward, answer.backward)
            self._planner.compute.set_reference(central, measured)
            self._journal.record_event(central, "layers measured", term=self._term.number, seconds=sum(measured.both))

    def record_measured(self, sender: str, measured: Measured) -> None:
        """Accept a device's measurement if it can be one; otherwise refuse the device."""
        times = (*measured.forward, *measured.backward)
        count = self._planner.layer_count
        if len(measured.forward) == len(measured.backward) == count and all(map(math.isfinite, times)):
            self._term.pending.record_answer(sender, measured)
        else:
            self._members.refuse_device(sender, f"it has not measured the {count} layers of the model")

    def _choose_version(self, held: list[HeldLayers], after_death: bool) -> tuple[int, bool]:
        """The version to continue from, and whether layers may be of other versions."""
        if after_death and self._settings.recovery.restores_checkpoint:
            held[:] = held[-1:]
        if after_death and not self._settings.recovery.consistent:
            return self._progress.round, True
        version = newest_complete_version(held, self._planner.layer_count)
        assert version is not None, "the archive is complete"
        return version, False

    def _make_assignments(
        self, plan: PipelinePlan, held: list[HeldLayers], version: int, mixed: bool
    ) -> dict[str, Message]:
        made = self._term.history.term_that_made(version)
        return {
            device: Assign(
                self._term.number, plan.cuts, plan.order, plan.windows, plan.stride, plan.replica_holders, version,
                made, tuple(plan_layer_sources(held, device, layers, None if mixed else version)),
            )
            for device, layers in zip(plan.order, plan.stage_layers, strict=True)
        }  # fmt: skip

    def _restart_from(self, version: int) -> None:
        """Continue the run from this version."""
        number, history = self._term.number, self._term.history
        if version < self._progress.round:
            self._journal.record_event(
                self._node.name, "rolled back", term=number, before=self._progress.round, to=version
            )
        for batch in range(self._progress.round, version):  # committed, but the reports had not arrived yet
            self._journal.record_event(
                self._node.name, "committed", batch=batch, term=history.term_that_made(batch + 1)
            )
        history.begin_term(number, version)
        self._progress.turn = number
        self.set_version(version)

    def record_commit(self, batch: int) -> None:
        """Every stage has applied this batch."""
        now, seconds = self._node.now(), self._node.now() - self._term.committed_at
        self.relayout.observe_batch(batch, seconds)
        if self._moved_at is not None:
            assert self._last_plan is not None
            self.relayout.record_standstill(max(0.0, now - self._moved_at - self._last_plan.period))
            self._moved_at = None
        self.set_version(batch + 1)

    def set_version(self, version: int) -> None:
        self._progress.round = self._progress.version = version
        self._progress.samples = version * self._context.batch_samples
        self._term.committed_at = self._node.now()

    def _record_layout(self, plan: PipelinePlan, version: int, began: float, after_death: bool) -> None:
        fields = {"term": self._term.number, "version": version, "cuts": list(plan.cuts), "order": list(plan.order)}
        name = "recover" if after_death else "settle"
        self._node.record(Span(self._node.name, name, began, self._node.now(), fields))
        more = {
            "windows": list(plan.windows),
            "period": plan.period,
            "stride": plan.stride,
            "keepers": list(plan.replica_holders),
        }
        self._journal.record_event(self._node.name, "partition", **fields, **more)

    # --- plan ------------------------------------------------------------------------------------------------------

    def consider_replan(self) -> None:
        """Decide whether another layout is worth moving to."""
        term, candidates, planner = self._term, self._members.candidates(), self._planner
        if term.progress is None or term.replan_wanted or not candidates:
            return
        old = term.progress.plan
        planner.clear_loss_plans()
        try:
            new = planner.plan_layout(candidates)
        except UserError:
            return
        if not new.has_same_layout(old):
            forecast = RelayoutForecast(
                planner.current_period_s(old),
                new.period,
                planner.migration_s(old, new),
                planner.compute.speed_uncertainty({*old.order, *new.order}),
                not all(map(planner.compute.has_run, new.order, new.stage_layers)),
            )
            term.replan_wanted = self.relayout.pays_off(forecast, self._progress.round)
        self._plan_for_losses(candidates)

    def consider_changed_speed(self) -> None:
        """Decide whether to move because a speed has changed; where speeds vary, also some batches later."""
        self.consider_replan()
        if self._planner.compute.speed_uncertainty(self._leader.roster):
            self.relayout.expect_more(self._progress.round)

    def _plan_for_losses(self, candidates: list[str]) -> None:
        """Prepare a plan for each single death."""
        self._planner.plan_for_losses(candidates, self._members.candidates(candidates[1:]))

    # --- end -------------------------------------------------------------------------------------------------------

    async def finish_in_flight(self) -> RunOutcome | None:
        """Let the stages before a dead one apply what had passed it, so that it need not be computed again."""
        progress, recovery = self._term.progress, self._settings.recovery
        if progress is None or not recovery.consistent or recovery.restores_checkpoint:
            return None
        asked: set[str] = set()
        max_s = len(progress.plan.order) * self._planner.current_period_s(progress.plan)
        ends_at = min(self._node.now() + max_s, self._leader.stall_timeout.expires_at)
        while (unfinished := progress.unfinished_stages()) and self._node.now() < ends_at:
            for device in unfinished:
                if device not in asked:
                    self._node.send(device, Finish(self._term.number))
            asked.update(unfinished)
            await self._leader.handle_next(ends_at)
        return self._leader.stall_outcome()

    async def rescue_model(self) -> None:
        """Save the newest version that the remaining devices hold, if batches have been committed."""
        if self._last_plan is None or not self._leader.roster:
            return
        held = await self._collect_inventories()
        version = newest_complete_version(held, self._planner.layer_count)
        if version is None or version <= self._archive.version:
            return
        self._restart_from(version)
        fetches: dict[str, list[Fetch]] = {}
        for origin in plan_layer_sources(held, COORDINATOR, range(self._planner.layer_count), version):
            request = Fetch(self._term.number, origin.first, origin.last, version)
            fetches.setdefault(origin.device, []).append(request)
        while fetches and not self._term.is_broken:
            await self.archive_sync.fetch_layers({device: requests.pop() for device, requests in fetches.items()})
            fetches = {device: requests for device, requests in fetches.items() if requests}
        if self._archive.version == version:
            self._context.policy.save_model(self._archive.weights, self._progress, self._node.now())
