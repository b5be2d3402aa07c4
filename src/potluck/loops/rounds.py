"""The coordinator's side of the rounds loop.

    while nothing says stop:
        muster      wait until enough devices are here
        invite      choose who takes part
        collect     answer pulls, take pushes, until the barrier opens
        commit      merge, step, record; release who is late
        settle      where a checkpoint is due: wait until nothing is under way, and save

One coroutine reads one mailbox, so there are no locks; every wait has an end and a name. Updates are merged one at a
time in the order in which the devices are forecast to answer, so the result does not depend on who was faster today.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from potluck.journal import Span
from potluck.loops.backends import ServerBackend, TurnIdentity
from potluck.loops.coordinator_journal import CoordinatorJournal
from potluck.loops.device_roster import DeviceRoster
from potluck.loops.draft_round import DraftRound
from potluck.loops.merge_order import MergeOrder
from potluck.loops.messages import Accept, Invite, Joined, Lost, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.node import Envelope, Node, Step, Work
from potluck.loops.parts.barrier import RoundStatus
from potluck.loops.retry_timer import RetryTimer
from potluck.loops.run_policy import RunPolicy
from potluck.loops.run_progress import RunOutcome, RunProgress, TurnRecord
from potluck.loops.sample_sharing import SampleSharing
from potluck.loops.settings import Rounds
from potluck.loops.stall_timeout import StallTimeout
from potluck.planning.data_injection import SampleTransfer

__all__ = ["RoundsCoordinator"]

_REMEMBERED = 200  # durations that the barrier's deadline goes by


class RoundsCoordinator:
    """Leads the rounds of one run."""

    def __init__(
        self,
        node: Node,
        settings: Rounds,
        mathematics: ServerBackend,
        layers: int,
        forecast: Callable[[str], float],
        most_samples: Callable[[str], int],
        rules: RunPolicy,
        books: RunProgress,
        sharing: SampleSharing | None = None,
    ) -> None:
        self.node = node
        self._settings = settings
        self.backend = mathematics
        self._layers = layers
        self._forecast = forecast
        self._most_samples = most_samples
        self._policy = rules
        self.progress = books
        self._journal = CoordinatorJournal(node, books)
        self._sharing = sharing
        self._roster = DeviceRoster()
        self._active_turns: dict[str, TurnRecord] = {}
        self._released_turns: dict[str, TurnRecord] = {}  # released, and not yet heard to have dropped its work
        self._merge_order = MergeOrder(self._merge_update)
        self._draft_round = DraftRound(self)
        self._update_count = 0
        self._updated_devices: set[str] = set()  # whose update for this round has come
        self._round_began_at = 0.0
        self._refused: dict[str, str] = {}  # whose update for this round could not be used, and why
        self.retry_s = float(settings.retry)
        self._stall_timeout = StallTimeout(settings.patience)
        self._retry_timer = RetryTimer(self.retry_s)
        self._draining = False
        self._started = False

    async def main(self) -> RunOutcome:
        """Lead rounds until a rule of the job, the user or a shortfall ends the run."""
        self._stall_timeout.restart_timer(self.node.now())
        await self._drain_mailbox()
        self._started = True
        ending = self._policy.stop_outcome(self.progress, self.node.now())
        if self.progress.round == 0 and ending is None and not self.progress.score:
            await self._evaluate_model()
            self._policy.save_checkpoint(self.progress, self.node.now())
        while ending is None:
            ending = (
                await self._wait_for_devices()
                or await self._run_round()
                or self._policy.stop_outcome(self.progress, self.node.now())
            )
        for device in self._roster:
            self.node.send(device, Stop())
        return ending

    async def _run_round(self) -> RunOutcome | None:
        self._round_began_at = self.node.now()
        self._invite_devices()
        if (
            self._settings.transfer.drafts_next_round
            and self._active_turns
            and not self._policy.checkpoint_due(self.progress.round + 1)
        ):
            self._draft_round.begin_draft(list(self._active_turns.values()), self._layers)
        ending = await self._collect_updates()
        if ending is None and self._update_count > 0:
            await self._commit_round()
            ending = await self._save_when_idle()
        elif ending is None and self._refused and self._roster and self._roster <= self._refused.keys():
            device, reason = next(iter(self._refused.items()))
            ending = RunOutcome("failed", f"no update of round {self.progress.round} could be used: {device}: {reason}")
        self._draining = self._draining and bool(self._active_turns)
        return ending

    # --- muster ----------------------------------------------------------------------------------------------------

    async def _wait_for_devices(self) -> RunOutcome | None:
        """Wait until enough devices are here."""
        least = self._settings.least
        while len(self._roster) < least:
            ending = await self._handle_next(math.inf)
            if ending is not None:
                return ending
        return None

    async def _drain_mailbox(self) -> None:
        """Take note of everyone whose arrival is in the mailbox already."""
        while (envelope := await self.node.receive(self.node.now())) is not None:
            self._handle_message(envelope)

    # --- invite ----------------------------------------------------------------------------------------------------

    def _invite_devices(self) -> None:
        """Choose who takes part; where work is carried over, fill up to the number wanted. Who was refused in this
        round has to wait for the next."""
        served = set() if self._settings.barrier.carries_over else self._updated_devices
        wanted = (
            (self._settings.devices or len(self._roster))
            - len(self._active_turns)
            - len(served - self._active_turns.keys())
        )
        if self._draining or wanted <= 0:
            return
        out = self._active_turns.keys() | self._refused.keys() | served
        idle = [device for device in self._roster if device not in out]
        if wanted < len(idle):
            chosen = self.node.rng("invite", self.progress.turn).choice(len(idle), wanted, replace=False)
            idle = [idle[place] for place in sorted(chosen)]
        gifts = self._plan_gifts(idle)
        for device in sorted(idle, key=lambda device: (self._forecast(device), device)):
            self._begin_turn(device, gifts)

    def _plan_gifts(self, devices: Sequence[str]) -> Sequence[SampleTransfer]:
        """Who gives samples to whom in this round, by the batches that they had last."""
        batches = {device: self.progress.batches[device] for device in devices if device in self.progress.batches}
        if self._sharing is None or not batches:
            return ()
        gifts = self._sharing.plan_gifts(batches, self.progress.round)
        self.progress.bytes_shared += sum(gift.samples for gift in gifts) * self._sharing.sample_bytes
        return gifts

    def _begin_turn(self, device: str, gifts: Sequence[SampleTransfer] = ()) -> None:
        turn = self.make_turn(device, gifts)
        if turn is not None:
            self._track_turn(turn)

    def _track_turn(self, turn: TurnRecord) -> None:
        self._released_turns.pop(turn.device, None)
        self._active_turns[turn.device] = turn
        self._retry_timer.schedule_retry(turn, self.node.now())
        if not self._settings.barrier.carries_over:
            self._merge_order.expect_turn(turn.number)

    def make_turn(self, device: str, gifts: Sequence[SampleTransfer] = (), ahead: bool = False) -> TurnRecord | None:
        """Invite a device, if it is here; `ahead` is for the round after this one."""
        books, incarnation = self.progress, self._roster.incarnation_of(device)
        if incarnation is None:
            return None
        round, count = books.round + ahead, books.counts.get(device, 0)
        gives = tuple((gift.receiver, gift.samples) for gift in gifts if gift.donor == device)
        gets = sum(gift.samples for gift in gifts if gift.receiver == device)
        invite = Invite(books.turn, round, count, gives, gets, ahead)
        state, part = self.backend.state, self.backend.select_submodel(TurnIdentity(device, round, count))
        turn = TurnRecord(invite, device, incarnation, books.version, self.node.now(), state, part)
        books.turn += 1
        books.counts[device] = count + 1
        self.node.send(device, turn.invite)
        return turn

    def _adopt_draft_turns(self) -> None:
        """Turns that began while the last round was still open belong to the one that begins."""
        for turn in self._draft_round.pop_turns().values():
            self._track_turn(turn)

    # --- collect ---------------------------------------------------------------------------------------------------

    async def _collect_updates(self) -> RunOutcome | None:
        """Serve the devices until the barrier opens, or nobody is left to wait for."""
        barrier = self._settings.barrier
        while True:
            progress = self._round_status()
            if barrier.should_close(progress) or not (self._active_turns or self._update_count):
                return None
            ending = await self._handle_next(barrier.next_check_at(progress))
            if ending is not None:
                return ending
            if barrier.carries_over:
                self._invite_devices()

    def _round_status(self) -> RoundStatus:
        return RoundStatus(
            self.node.now(), self._round_began_at, self._update_count, len(self._active_turns), self.progress.durations
        )

    async def _handle_next(self, until: float) -> RunOutcome | None:
        """Handle the next thing that happens, nudge who stays silent, and give up when nothing moves for too long."""
        until = until if until > self.node.now() else math.inf
        envelope = await self.node.receive(min(until, self._stall_timeout.expires_at, self._retry_timer.next_retry_at))
        if envelope is not None:
            self._handle_message(envelope)
        now = self.node.now()
        if now >= self._retry_timer.next_retry_at:
            self._send_reminders(now)
        if now >= self._stall_timeout.expires_at:
            return RunOutcome("failed", self._stall_reason())
        return self._policy.interrupt_outcome()

    def _send_reminders(self, now: float) -> None:
        """Say again what was not answered: an invitation, or a release."""
        silent = [turn for turn in self._active_turns.values() if not turn.has_answered]
        for turn in self._retry_timer.due_turns([*silent, *self._released_turns.values()], now):
            self.node.send(turn.device, Release(turn.number) if turn.device in self._released_turns else turn.invite)

    def _handle_message(self, envelope: Envelope) -> None:
        match envelope.message:
            case Pull() as pull:
                self._answer_pull(envelope, pull)
            case Push() as push:
                self._answer_push(envelope, push)
            case Released(turn=number):
                turn = self._released_turns.get(envelope.sender)
                if turn is not None and turn.number <= number:
                    del self._released_turns[envelope.sender]
            case Joined(device=device, incarnation=incarnation):
                self._add_device(device, incarnation)
            case Lost(device=device, incarnation=incarnation, reason=reason):
                self._remove_device(device, incarnation, reason)

    def _find_turn(self, envelope: Envelope, number: int) -> TurnRecord | None:
        """The turn that a message belongs to, if it is still in work; whoever else speaks is released."""
        turn = self._active_turns.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.has_answered = True
            self._stall_timeout.extend_once(envelope.sender, self.node.now())
            return turn
        turn = self._draft_round.turns.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.has_answered = True
            return turn
        self.node.send(envelope.sender, Release(number))
        return None

    def _answer_pull(self, envelope: Envelope, pull: Pull) -> None:
        turn = self._find_turn(envelope, pull.turn)
        if turn is None or not 0 <= pull.first <= pull.last < self._layers:
            return
        if turn.invite.ahead:
            self._draft_round.answer_pull(turn, pull)
        else:
            self.send_segment(turn, pull, turn.state)

    def send_segment(self, turn: TurnRecord, pull: Pull, state: Any) -> Awaitable[None] | None:
        """Answer a request for some layers of a version."""
        sending = turn.pending_sends.get(pull.first)
        if sending is not None and not sending.done():
            return None  # asked twice while the answer is on its way
        payload = self.backend.encode_segment(state, turn.submodel, pull.first, pull.last)
        segment = Segment(payload, turn=pull.turn, first=pull.first, last=pull.last, begun=self.node.now())
        self.progress.bytes_sent += segment.nbytes
        sent = self.node.send(turn.device, segment)
        turn.track_send(pull.first, sent)
        return sent

    def _answer_push(self, envelope: Envelope, push: Push) -> None:
        turn = self._find_turn(envelope, push.turn)
        if turn is None:
            return
        self.progress.bytes_received += push.nbytes
        reason = self._push_refusal(turn, push)
        if reason is not None:
            self._refuse_update(turn, reason)
            return
        turn.add_segment(push)
        self._stall_timeout.restart_timer(self.node.now())
        self.node.send(envelope.sender, Accept(push.turn, push.first))
        self._advance_draft(turn, push)
        if turn.is_complete(self._layers):
            self._accept_update(turn)

    def _push_refusal(self, turn: TurnRecord, push: Push) -> str | None:
        """Why a segment of an update cannot be taken, told by its header."""
        if turn is not self._active_turns.get(turn.device):
            return "it sent an update before it can have had the model"
        most = self._most_samples(turn.device) + turn.invite.gets
        if not 1 <= push.samples <= most:
            return f"it says that it trained on {push.samples} samples; in a turn it has 1 to {most}"
        return turn.segment_refusal(push, self._layers)

    def _refuse_update(self, turn: TurnRecord, reason: str) -> None:
        """The round goes on without this update; its device is told why."""
        self._journal.record_event(turn.device, "refused", reason=reason)
        self.progress.refused += 1
        self.node.send(turn.device, Release(turn.number, only=True, refused=reason))
        self._draft_round.discard_draft()
        turn.cancel_sends()
        if self._active_turns.get(turn.device) is turn:
            del self._active_turns[turn.device]
            self._refused[turn.device] = reason
            self._merge_order.skip_turn(turn.number)

    def _advance_draft(self, turn: TurnRecord, push: Push) -> None:
        """With duplex transfers, pass on what everyone has sent; what cannot be merged is not."""
        if self._draft_round.draft is None:
            return
        if (
            self.backend.update_refusal([piece for piece in turn.segments if piece.first == push.first], turn.submodel)
            is None
        ):
            self._draft_round.merge_ready_layers()
        else:
            self._draft_round.discard_draft()

    def _accept_update(self, turn: TurnRecord) -> None:
        refusal = self.backend.update_refusal(turn.segments, turn.submodel)
        if refusal is not None:
            self._refuse_update(turn, refusal)
            return
        del self._active_turns[turn.device]
        self._update_count += 1
        self._updated_devices.add(turn.device)
        self.progress.durations = (*self.progress.durations, self.node.now() - turn.invited_at)[-_REMEMBERED:]
        self._merge_order.add_update(turn.number, turn)

    def _merge_update(self, turn: TurnRecord) -> None:
        if not self._draft_round.keep_update(turn):
            self.backend.add_update(turn.segments, turn.submodel, turn.samples, self.progress.version - turn.version)
        self.progress.add_update(turn)
        if self._sharing is not None:
            self.progress.batches[turn.device] = turn.samples

    # --- membership ------------------------------------------------------------------------------------------------

    def _add_device(self, device: str, incarnation: int) -> None:
        self._stall_timeout.extend_once(device, self.node.now())
        self._roster.add_device(device, incarnation)
        if self._started:
            self._journal.record_event(device, "joined", incarnation=incarnation)

    def _remove_device(self, device: str, incarnation: int, reason: str) -> None:
        if not self._roster.remove_device(device, incarnation):
            return
        self._released_turns.pop(device, None)
        self._journal.record_event(device, "lost", incarnation=incarnation, reason=reason)
        turn = self._active_turns.pop(device, None)
        if turn is not None:
            turn.cancel_sends()
            self._merge_order.skip_turn(turn.number)
        self._draft_round.remove_device(device, unfinished=turn is not None)

    def _stall_reason(self) -> str:
        """Why the run cannot go on, in one sentence."""
        waited = f"nothing moved for {self._settings.patience}"
        if len(self._roster) < self._settings.least:
            return f"{waited}: {len(self._roster)} of the {self._settings.least} devices needed are here (rounds.least)"
        missing = ", ".join(sorted([*self._active_turns, *self._released_turns])[:5])
        return (
            f"{waited} in round {self.progress.round}: {self._update_count} updates came, still waiting for {missing}"
        )

    # --- commit ----------------------------------------------------------------------------------------------------

    async def _commit_round(self) -> None:
        """The step from one version to the next: either all of it happens or none."""
        books, now = self.progress, self.node.now()
        for turn in [] if self._settings.barrier.carries_over else list(self._active_turns.values()):
            self._release_turn(turn)
        self._merge_order.merge_remaining()
        self._updated_devices.clear()
        self._refused.clear()
        if not self._draft_round.commit_draft():
            self.backend.step(self.learning_rate_factor(books.samples_now, len(books.merged)))
        merged = [[device, number] for device, number in books.merged]
        fields = {"round": books.round, "devices": merged, "samples": books.samples_now}
        self.node.record(Span(self.node.name, "round", self._round_began_at, now, fields))
        self._journal.record_scalar("loss", books.mean_loss)
        books.commit_round()
        self._update_count = 0
        self._adopt_draft_turns()
        self._stall_timeout.restart_timer(now)
        if self._policy.evaluation_due(books.round):
            await self._evaluate_model()
        self._policy.report_progress(books, now)

    def learning_rate_factor(self, samples: int, devices: int) -> float:
        """On the learning rate, of a round of so many samples and devices."""
        round = self.progress.round
        return self._settings.schedule.lr_factor(round) * self._settings.scaling.lr_factor(samples, devices, round)

    def _release_turn(self, turn: TurnRecord) -> None:
        """Late for the round: tell it to drop its work."""
        del self._active_turns[turn.device]
        self._merge_order.skip_turn(turn.number)
        turn.cancel_sends()
        self._released_turns[turn.device] = turn
        self._retry_timer.schedule_retry(turn, self.node.now())
        self.progress.late += 1
        self._journal.record_event(turn.device, "late")
        self.node.send(turn.device, Release(turn.number))

    async def _evaluate_model(self) -> None:
        """Score the newest version on held-out data; the coordinator's own time is not modelled."""
        score = await self.node.compute(Work([Step(0.0)], lambda pace: self.backend.evaluate()))
        self._journal.record_evaluation(score)

    # --- settle ----------------------------------------------------------------------------------------------------

    async def _save_when_idle(self) -> RunOutcome | None:
        """Save where nothing is under way; where a checkpoint is due, wait for that. A quiet point costs a little time,
        but a run that is taken up from it goes on exactly as this one does."""
        carries = self._settings.barrier.carries_over
        if self._policy.checkpoint_due(self.progress.round):
            if carries and self._active_turns:
                self._draining = True
            while self._released_turns:
                ending = await self._handle_next(math.inf)
                if ending is not None:
                    return ending
        if not self._active_turns and not self._released_turns and not self._draft_round.turns:
            self._policy.save_checkpoint(self.progress, self.node.now())
        return None
