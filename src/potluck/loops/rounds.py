"""The coordinator's side of the rounds loop.

    until the run ends:
        wait        until enough devices are connected
        invite      the devices that take part
        collect     answer pulls, accept pushes, until the barrier lets the round close
        commit      merge, step, record; release the devices that are late
        save        where a checkpoint is due: wait until nothing is in flight

Updates are merged one at a time in the order in which the devices are expected to finish, so the result does not depend
on which of them happened to be faster.
"""

from __future__ import annotations

import math

from potluck.journal import Span
from potluck.loops.draft_round import DraftRound
from potluck.loops.frozen_exchange import FrozenSender
from potluck.loops.leader import Leader
from potluck.loops.merge_order import MergeOrder
from potluck.loops.messages import Accept, FrozenPull, Holdings, Joined, Lost, Pull, Push, Release, Released
from potluck.loops.node import Envelope, Node
from potluck.loops.parts.barrier import RoundStatus
from potluck.loops.refused_devices import RefusedDevices
from potluck.loops.released_turns import ReleasedTurns
from potluck.loops.retry_timer import RetryTimer
from potluck.loops.rounds_context import RoundsContext
from potluck.loops.run_progress import RunOutcome, diverged_outcome
from potluck.loops.sample_claims import SampleClaims
from potluck.loops.turn_dispatcher import TurnDispatcher
from potluck.loops.turn_patience import TurnPatience
from potluck.loops.turn_record import TurnRecord
from potluck.loops.update_intake import UpdateIntake
from potluck.model.update_merging import FULL_LENGTH

__all__ = ["RoundsCoordinator"]

_DURATIONS_KEPT = 200  # from which the barrier derives its deadline
_MAX_NAMES = 5  # of devices in a failure's reason


class RoundsCoordinator:
    """Leads the rounds of one run."""

    def __init__(self, node: Node, context: RoundsContext) -> None:
        self._node = node
        self._context = context
        self._settings = context.settings
        self._backend = context.backend
        self._layers = context.layers
        self.progress = context.progress
        schedules = {"schedule": self._settings.schedule, "local_schedule": self._settings.local_schedule}
        self._leader = Leader(node, self, context.policy, context.progress, context.settings.patience, schedules)
        self._roster = self._leader.roster
        self._journal = self._leader.journal
        self._policy = context.policy
        self._dispatcher = TurnDispatcher(self._leader, context)
        self._claims = SampleClaims(node, context, self._journal)
        self._draft_round = DraftRound(node, context, self._dispatcher)
        self._frozen_sender = None if context.frozen is None else FrozenSender(node, context.frozen, context.progress)
        self._active_turns: dict[str, TurnRecord] = {}  # by device
        self._intake = UpdateIntake(context, self._journal, self._merge_update)
        self._merge_order = MergeOrder(self._intake.add_update)
        self._retry_timer: RetryTimer[int] = RetryTimer(float(self._settings.retry))  # by turn number
        self._patience = TurnPatience(context)
        self._released = ReleasedTurns(self._leader, self._retry_timer, self._patience)
        self._update_count = 0
        self._updated_devices: set[str] = set()  # whose update for this round has arrived
        self._refused = RefusedDevices(self.progress, float(self._settings.patience))
        self._round_began_at = 0.0
        self._draining = False

    async def main(self) -> RunOutcome:
        """Lead rounds until a stop condition, the user or a stall ends the run."""
        outcome = await self._leader.start()
        if self.progress.round == 0 and outcome is None and not self.progress.score:
            await self._leader.evaluate(self._backend.evaluate)
            self._policy.save_checkpoint(self.progress, self._node.now())
        while outcome is None:
            outcome = await self._wait_for_devices() or await self._run_round() or self._leader.stop_outcome()
        self._leader.stop_devices()
        return outcome

    async def _wait_for_devices(self) -> RunOutcome | None:
        """Wait until enough devices are connected and not left out."""
        while len(self._released.available_devices()) < self._settings.least:
            outcome = await self._handle_next(math.inf)
            if outcome is not None:
                return outcome
        return None

    async def _run_round(self) -> RunOutcome | None:
        self._round_began_at = self._node.now()
        self._invite_devices()
        if (
            self._settings.transfer.drafts_next_round
            and self._active_turns
            and not self._policy.checkpoint_due(self.progress.round + 1)
        ):
            self._draft_round.begin_draft(list(self._active_turns.values()))
        outcome = await self._collect_updates()
        if outcome is None and self._update_count > 0:
            outcome = await self._commit_round() or await self._save_when_idle()
        elif outcome is None and self._draining:  # the devices that it waited for are lost, refused or left out
            outcome = await self._save_when_idle()
        elif outcome is None:
            outcome = await self._wait_for_others()
        self._draining = self._draining and bool(self._active_turns)
        return outcome

    async def _wait_for_others(self) -> RunOutcome | None:
        """While only devices are connected that were refused in this round, wait; the outcome if they are most."""
        outcome = None
        while outcome is None and self._refused.are_all(self._released.available_devices()):
            outcome = self._refused.outcome(self._roster, self._node.now()) or await self._handle_next(math.inf)
        return outcome

    # --- invite ----------------------------------------------------------------------------------------------------

    def _invite_devices(self) -> None:
        """Invite devices up to the number wanted; one that was refused in this round waits for the next."""
        served = set() if self._settings.barrier.carries_over else self._updated_devices
        wanted = (
            (self._settings.devices or len(self._released.available_devices()))
            - len(self._active_turns)
            - len(served - self._active_turns.keys())
        )
        if self._draining or wanted <= 0:
            return
        excluded = self._active_turns.keys() | served
        available = self._released.available_devices()
        idle = [device for device in available if device not in excluded and device not in self._refused]
        for turn in self._dispatcher.open_turns(idle, wanted, list(self._active_turns.values())):
            self._track_turn(turn)

    def _track_turn(self, turn: TurnRecord) -> None:
        self._released.forget_device(turn.device)
        self._active_turns[turn.device] = turn
        self.progress.took_part_at[turn.device] = now = self._node.now()
        self._retry_timer.schedule_retry(turn.number, now)
        self._patience.watch_turn(turn, now)
        if not self._settings.barrier.carries_over:
            self._merge_order.expect_turn(turn.number)

    # --- collect ---------------------------------------------------------------------------------------------------

    async def _collect_updates(self) -> RunOutcome | None:
        """Serve the devices until the barrier lets the round close, or no device is left to wait for."""
        barrier = self._settings.barrier
        while True:
            status = self._round_status()
            if barrier.should_close(status) or not (self._active_turns or self._update_count):
                return None
            outcome = await self._handle_next(barrier.next_check_at(status))
            if outcome is not None:
                return outcome
            if barrier.carries_over:
                self._invite_devices()

    def _round_status(self) -> RoundStatus:
        return RoundStatus(
            self._node.now(), self._round_began_at, self._update_count, len(self._active_turns), self.progress.durations
        )

    async def _handle_next(self, until: float) -> RunOutcome | None:
        """Handle the next message and repeat what was not answered; the outcome if the run stalls or is interrupted."""
        until = until if until > self._node.now() else math.inf
        await self._leader.handle_next(min(until, self._retry_timer.next_retry_at, self._patience.next_check_at))
        now = self._node.now()
        if now >= min(self._patience.next_check_at, self._leader.stall_timeout.expires_at):
            self._leave_out_silent(now)
        if now >= self._retry_timer.next_retry_at:
            self._send_reminders(now)
        return self._leader.stall_outcome() or self._policy.interrupt_outcome()

    def _send_reminders(self, now: float) -> None:
        """Repeat invitations and releases that were not answered."""
        silent = [turn for turn in self._active_turns.values() if not turn.has_answered]
        waiting = {turn.number: turn for turn in (*silent, *self._released.turns.values())}
        for turn in map(waiting.__getitem__, self._retry_timer.due_requests(waiting, now)):
            if turn.device in self._released.turns:
                self._released.remind_device(turn)
            else:
                self._node.send(turn.device, turn.invite)

    def handle_message(self, envelope: Envelope) -> None:
        """Handle one message; the leader hands over those that are already in the mailbox at the start."""
        match envelope.message:
            case Pull() as pull:
                self._answer_pull(envelope, pull)
            case Push() as push:
                self._answer_push(envelope, push)
            case Holdings(samples=samples):
                self._claims.declare_samples(envelope.sender, envelope.incarnation, samples)
            case Released() as released:
                self._released.confirm_release(envelope.sender, released)
            case FrozenPull() as frozen_pull:
                self._answer_frozen_pull(envelope, frozen_pull)
            case Joined() as joined:
                self._leader.add_device(joined)
                if joined.device in self._released.left_out:
                    self._released.ask_back(joined.device)
            case Lost() as lost:
                self._remove_device(lost)

    def _find_turn(self, envelope: Envelope, number: int) -> TurnRecord | None:
        """The turn that a message belongs to, if it is still open; otherwise its sender is released."""
        turn = self._active_turns.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.has_answered, turn.heard_at = True, self._node.now()
            self._leader.stall_timeout.extend_once(envelope.sender, self._node.now())
            return turn
        turn = self._draft_round.turns.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.has_answered = True
            return turn
        self._node.send(envelope.sender, Release(number))
        return None

    def _answer_pull(self, envelope: Envelope, pull: Pull) -> None:
        turn = self._find_turn(envelope, pull.turn)
        if turn is None or not 0 <= pull.first <= pull.last < self._layers:
            return
        if turn.invite.ahead:
            self._draft_round.answer_pull(turn, pull)
        else:
            self._dispatcher.send_segment(turn, pull, turn.state)

    def _answer_frozen_pull(self, envelope: Envelope, pull: FrozenPull) -> None:
        if self._frozen_sender is None or self._roster.incarnation_of(envelope.sender) != envelope.incarnation:
            return
        if not self._frozen_sender.is_valid_request(pull):
            return
        self._leader.stall_timeout.extend_once(f"{envelope.sender}/{pull.first}", self._node.now())
        self._frozen_sender.answer_request(envelope.sender, pull)

    def _answer_push(self, envelope: Envelope, push: Push) -> None:
        turn = self._find_turn(envelope, push.turn)
        if turn is None:
            return
        self.progress.bytes_received += push.nbytes
        reason = self._push_refusal(turn, push)
        if reason is not None:
            self._refuse_update(turn, reason)
            return
        turn.add_segment(push, self._claims.counted_samples(turn, push.samples))
        self._leader.stall_timeout.restart_timer(self._node.now())
        if envelope.transfer is not None and self._settings.transfer.uses_estimates:
            turn.transfers.append((envelope.transfer.nbytes, envelope.transfer.seconds))
        self._node.send(envelope.sender, Accept(push.turn, push.first))
        self._advance_draft(turn, push)
        if turn.is_complete(self._layers):
            self._accept_update(turn)

    def _push_refusal(self, turn: TurnRecord, push: Push) -> str | None:
        """Why a segment of an update cannot be used, judged by its header."""
        if turn is not self._active_turns.get(turn.device):
            return "it sent an update before it can have had the model"
        return self._claims.refusal(turn, push.samples) or turn.segment_refusal(push, self._layers)

    def _refuse_update(self, turn: TurnRecord, reason: str) -> None:
        """Continue the round without this update, and tell the device why."""
        self._journal.record_event(turn.device, "refused", reason=reason)
        self.progress.refused += 1
        self._node.send(turn.device, Release(turn.number, only=True, refused=reason))
        self._draft_round.discard_draft()
        turn.cancel_sends()
        if self._active_turns.get(turn.device) is turn:
            del self._active_turns[turn.device]
            self._refused.add_device(turn.device, reason)
            self._merge_order.skip_turn(turn.number)

    def _advance_draft(self, turn: TurnRecord, push: Push) -> None:
        """With duplex transfers, merge the layers that every device has sent; discard the draft if one is unusable."""
        if self._draft_round.draft is None:
            return
        received = [segment for segment in turn.segments if segment.first == push.first]
        if self._backend.update_refusal(received, turn.submodel) is None:
            self._draft_round.merge_ready_layers()
        else:
            self._draft_round.discard_draft()

    def _accept_update(self, turn: TurnRecord) -> None:
        refusal = self._backend.update_refusal(turn.segments, turn.submodel) or self._intake.measure_update(turn)
        if refusal is not None:
            self._refuse_update(turn, refusal)
            return
        del self._active_turns[turn.device]
        self._update_count += 1
        self._updated_devices.add(turn.device)
        if turn.transfers:
            self.progress.pushed[turn.device] = tuple(turn.transfers)
        seconds = self._node.now() - turn.invited_at
        self.progress.durations = (*self.progress.durations, seconds)[-_DURATIONS_KEPT:]
        self._patience.observe_turn(turn.device, seconds)
        self._merge_order.add_update(turn.number, turn)

    def _merge_update(self, turn: TurnRecord) -> None:
        if turn.scale != FULL_LENGTH:
            self._draft_round.discard_draft()  # it has the update's layers as they arrived
        if not self._draft_round.keep_update(turn):
            staleness = self.progress.version - turn.version
            self._backend.add_update(turn.segments, turn.submodel, turn.samples, staleness, turn.scale)
        self.progress.add_update(turn)
        if self._context.sharing is not None:
            self._context.sharing.count_update(turn, self.progress)

    # --- membership ------------------------------------------------------------------------------------------------

    def _remove_device(self, lost: Lost) -> None:
        if not self._leader.remove_device(lost):
            return
        if lost.device in self.progress.took_part_at:
            self.progress.took_part_at[lost.device] = self._node.now()
        self._released.forget_device(lost.device)
        turn = self._active_turns.get(lost.device)
        if turn is not None:
            self._drop_turn(turn)
        self._draft_round.remove_device(lost.device, unfinished=turn is not None)

    def _leave_out_silent(self, now: float) -> None:
        """Go on without the devices that are connected but send nothing; a run that could go on does not stall."""
        waiting = [*self._active_turns.values(), *self._released.unconfirmed()]
        for turn in waiting:
            if self._frozen_sender is not None and self._frozen_sender.is_sending_to(turn.device):
                turn.heard_at = now
        stalled = now >= self._leader.stall_timeout.expires_at and (self._update_count > 0 or not self._active_turns)
        silent = waiting if stalled else self._patience.overdue_turns(waiting, now)
        for turn in silent:
            if self._active_turns.get(turn.device) is turn:
                self._drop_turn(turn)
                self._draft_round.remove_device(turn.device, unfinished=True)
            self._released.leave_out(turn)
        if silent and stalled:
            self._leader.stall_timeout.restart_timer(now)

    def stall_reason(self) -> str:
        """What the run is waiting for, with the names of the devices."""
        connected, least = len(self._roster), self._settings.least
        if connected < least:
            departed = self._roster.departed[-_MAX_NAMES:]
            missing = f"{', '.join(departed)} to return" if departed else f"{least - connected} more to join"
            return (
                f"{connected} of the {least} devices needed are connected (rounds.least), still waiting for {missing}"
            )
        if self._refused.are_all(self._released.available_devices()):
            return self._refused.stall_reason(self._node.now(), _MAX_NAMES)
        waiting = ", ".join(sorted({*self._active_turns, *self._released.turns})[:_MAX_NAMES])
        return f"{self._update_count} updates of round {self.progress.round} arrived, still waiting for {waiting}"

    # --- commit ----------------------------------------------------------------------------------------------------

    async def _commit_round(self) -> RunOutcome | None:
        """Make the next version from the updates; nothing awaits before it is complete."""
        self._policy.check_may_commit()
        progress, now = self.progress, self._node.now()
        for turn in [] if self._settings.barrier.carries_over else list(self._active_turns.values()):
            self._drop_turn(turn)
            self._released.release_late(turn)
        self._merge_order.merge_remaining()
        self._intake.merge_held()
        self._updated_devices.clear()
        self._refused.forget_all()
        is_finite = self._draft_round.commit_draft()
        if is_finite is None:
            lr_factor = self._context.learning_rate_factor(progress.samples_now, len(progress.merged))
            is_finite = self._backend.step(lr_factor)
        if not is_finite:
            return diverged_outcome(progress.round, "with its updates the weights would not be finite")
        merged = [[device, number] for device, number in progress.merged]
        fields = {"round": progress.round, "devices": merged, "samples": progress.samples_now}
        self._node.record(Span(self._node.name, "round", self._round_began_at, now, fields))
        self._journal.record_scalar("loss", progress.mean_loss)
        progress.commit_round()
        self._update_count = 0
        for turn in self._draft_round.pop_turns().values():
            self._track_turn(turn)
        self._leader.stall_timeout.restart_timer(now)
        if self._policy.evaluation_due(progress.round):
            await self._leader.evaluate(self._backend.evaluate)
        self._policy.report_progress(progress, now)
        return None

    def _drop_turn(self, turn: TurnRecord) -> None:
        """The round goes on without a turn that is not complete."""
        del self._active_turns[turn.device]
        self._merge_order.skip_turn(turn.number)
        turn.cancel_sends()

    # --- save ------------------------------------------------------------------------------------------------------

    async def _save_when_idle(self) -> RunOutcome | None:
        """Save the run if nothing is in flight; where a checkpoint is due, wait for that.

        Waiting costs a little time, but resuming at this point gives the same result as never stopping.
        """
        carries = self._settings.barrier.carries_over
        if self._policy.checkpoint_due(self.progress.round):
            if carries and self._active_turns:
                self._draining = True
            while self._released.unconfirmed():
                outcome = await self._handle_next(math.inf)
                if outcome is not None:
                    return outcome
        if not self._active_turns and not self._released.unconfirmed() and not self._draft_round.turns:
            self._policy.save_checkpoint(self.progress, self._node.now())
        return None
