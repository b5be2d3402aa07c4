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
from potluck.loops.chronicle import Chronicle
from potluck.loops.forerun import Forerun
from potluck.loops.lineup import Lineup
from potluck.loops.mathematics import ServerMathematics, Whom
from potluck.loops.messages import Accept, Invite, Joined, Lost, Pull, Push, Release, Released, Segment, Stop
from potluck.loops.node import Envelope, Node, Step, Work
from potluck.loops.parts.barrier import Progress
from potluck.loops.patience import Patience
from potluck.loops.progress import Books, Ending, Turn
from potluck.loops.reminders import Reminders
from potluck.loops.roll import Roll
from potluck.loops.rules import Rules
from potluck.loops.settings import Rounds
from potluck.loops.sharing import Sharing
from potluck.planning.injection import Gift

__all__ = ["Coordinator"]

_REMEMBERED = 200  # durations that the barrier's deadline goes by


class Coordinator:
    """Leads the rounds of one run."""

    def __init__(
        self,
        node: Node,
        settings: Rounds,
        mathematics: ServerMathematics,
        layers: int,
        forecast: Callable[[str], float],
        most_samples: Callable[[str], int],
        rules: Rules,
        books: Books,
        sharing: Sharing | None = None,
    ) -> None:
        self.node = node
        self._settings = settings
        self.mathematics = mathematics
        self._layers = layers
        self._forecast = forecast
        self._most_samples = most_samples
        self._rules = rules
        self.books = books
        self._chronicle = Chronicle(node, books)
        self._sharing = sharing
        self._here = Roll()
        self._working: dict[str, Turn] = {}
        self._late: dict[str, Turn] = {}  # released, and not yet heard to have dropped its work
        self._lineup = Lineup(self._merge)
        self._forerun = Forerun(self)
        self._arrived = 0
        self._served: set[str] = set()  # whose update for this round has come
        self._opened = 0.0
        self._refused: dict[str, str] = {}  # whose update for this round could not be used, and why
        self.retry_s = float(settings.retry)
        self._patience = Patience(settings.patience)
        self._reminders = Reminders(self.retry_s)
        self._draining = False
        self._begun = False

    async def main(self) -> Ending:
        """Lead rounds until a rule of the job, the user or a shortfall ends the run."""
        self._patience.begin(self.node.now())
        await self._catch_up()
        self._begun = True
        ending = self._rules.ending(self.books, self.node.now())
        if self.books.round == 0 and ending is None and not self.books.score:
            await self._measure()
            self._rules.save(self.books, self.node.now())
        while ending is None:
            ending = await self._muster() or await self._round() or self._rules.ending(self.books, self.node.now())
        for device in self._here:
            self.node.send(device, Stop())
        return ending

    async def _round(self) -> Ending | None:
        self._opened = self.node.now()
        self._invite()
        if self._settings.transfer.ahead and self._working and not self._rules.save_due(self.books.round + 1):
            self._forerun.open(list(self._working.values()), self._layers)
        ending = await self._collect()
        if ending is None and self._arrived > 0:
            await self._commit()
            ending = await self._settle()
        elif ending is None and self._refused and self._here and self._here <= self._refused.keys():
            device, reason = next(iter(self._refused.items()))
            ending = Ending("failed", f"no update of round {self.books.round} could be used: {device}: {reason}")
        self._draining = self._draining and bool(self._working)
        return ending

    # --- muster ----------------------------------------------------------------------------------------------------

    async def _muster(self) -> Ending | None:
        """Wait until enough devices are here."""
        least = self._settings.least
        while len(self._here) < least:
            ending = await self._step(math.inf)
            if ending is not None:
                return ending
        return None

    async def _catch_up(self) -> None:
        """Take note of everyone whose arrival is in the mailbox already."""
        while (envelope := await self.node.receive(self.node.now())) is not None:
            self._handle(envelope)

    # --- invite ----------------------------------------------------------------------------------------------------

    def _invite(self) -> None:
        """Choose who takes part; where work is carried over, fill up to the number wanted. Who was refused in this
        round has to wait for the next."""
        served = set() if self._settings.barrier.carries else self._served
        wanted = (self._settings.devices or len(self._here)) - len(self._working) - len(served - self._working.keys())
        if self._draining or wanted <= 0:
            return
        out = self._working.keys() | self._refused.keys() | served
        idle = [device for device in self._here if device not in out]
        if wanted < len(idle):
            chosen = self.node.rng("invite", self.books.turn).choice(len(idle), wanted, replace=False)
            idle = [idle[place] for place in sorted(chosen)]
        gifts = self._gifts(idle)
        for device in sorted(idle, key=lambda device: (self._forecast(device), device)):
            self._begin_turn(device, gifts)

    def _gifts(self, devices: Sequence[str]) -> Sequence[Gift]:
        """Who gives samples to whom in this round, by the batches that they had last."""
        batches = {device: self.books.batches[device] for device in devices if device in self.books.batches}
        if self._sharing is None or not batches:
            return ()
        gifts = self._sharing.gifts(batches, self.books.round)
        self.books.bytes_shared += sum(gift.samples for gift in gifts) * self._sharing.sample_bytes
        return gifts

    def _begin_turn(self, device: str, gifts: Sequence[Gift] = ()) -> None:
        turn = self.make_turn(device, gifts)
        if turn is not None:
            self._put_to_work(turn)

    def _put_to_work(self, turn: Turn) -> None:
        self._late.pop(turn.device, None)
        self._working[turn.device] = turn
        self._reminders.watch(turn, self.node.now())
        if not self._settings.barrier.carries:
            self._lineup.expect(turn.number)

    def make_turn(self, device: str, gifts: Sequence[Gift] = (), ahead: bool = False) -> Turn | None:
        """Invite a device, if it is here; `ahead` is for the round after this one."""
        books, incarnation = self.books, self._here.incarnation(device)
        if incarnation is None:
            return None
        round, count = books.round + ahead, books.counts.get(device, 0)
        gives = tuple((gift.receiver, gift.samples) for gift in gifts if gift.donor == device)
        gets = sum(gift.samples for gift in gifts if gift.receiver == device)
        invite = Invite(books.turn, round, count, gives, gets, ahead)
        state, part = self.mathematics.state, self.mathematics.select(Whom(device, round, count))
        turn = Turn(invite, device, incarnation, books.version, self.node.now(), state, part)
        books.turn += 1
        books.counts[device] = count + 1
        self.node.send(device, turn.invite)
        return turn

    def _take_over(self) -> None:
        """Turns that began while the last round was still open belong to the one that begins."""
        for turn in self._forerun.take_over().values():
            self._put_to_work(turn)

    # --- collect ---------------------------------------------------------------------------------------------------

    async def _collect(self) -> Ending | None:
        """Serve the devices until the barrier opens, or nobody is left to wait for."""
        barrier = self._settings.barrier
        while True:
            progress = self._progress()
            if barrier.opens(progress) or not (self._working or self._arrived):
                return None
            ending = await self._step(barrier.look_again(progress))
            if ending is not None:
                return ending
            if barrier.carries:
                self._invite()

    def _progress(self) -> Progress:
        return Progress(self.node.now(), self._opened, self._arrived, len(self._working), self.books.durations)

    async def _step(self, until: float) -> Ending | None:
        """Handle the next thing that happens, nudge who stays silent, and give up when nothing moves for too long."""
        until = until if until > self.node.now() else math.inf
        envelope = await self.node.receive(min(until, self._patience.ends_at, self._reminders.next_at))
        if envelope is not None:
            self._handle(envelope)
        now = self.node.now()
        if now >= self._reminders.next_at:
            self._remind(now)
        if now >= self._patience.ends_at:
            return Ending("failed", self._shortfall())
        return self._rules.interruption()

    def _remind(self, now: float) -> None:
        """Say again what was not answered: an invitation, or a release."""
        silent = [turn for turn in self._working.values() if not turn.heard]
        for turn in self._reminders.due([*silent, *self._late.values()], now):
            self.node.send(turn.device, Release(turn.number) if turn.device in self._late else turn.invite)

    def _handle(self, envelope: Envelope) -> None:
        match envelope.message:
            case Pull() as pull:
                self._answer_pull(envelope, pull)
            case Push() as push:
                self._answer_push(envelope, push)
            case Released(turn=number):
                turn = self._late.get(envelope.sender)
                if turn is not None and turn.number <= number:
                    del self._late[envelope.sender]
            case Joined(device=device, incarnation=incarnation):
                self._join(device, incarnation)
            case Lost(device=device, incarnation=incarnation, reason=reason):
                self._lose(device, incarnation, reason)

    def _turn_of(self, envelope: Envelope, number: int) -> Turn | None:
        """The turn that a message belongs to, if it is still in work; whoever else speaks is released."""
        turn = self._working.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.heard = True
            self._patience.stir(envelope.sender, self.node.now())
            return turn
        turn = self._forerun.turns.get(envelope.sender)
        if turn is not None and turn.number == number and turn.incarnation == envelope.incarnation:
            turn.heard = True
            return turn
        self.node.send(envelope.sender, Release(number))
        return None

    def _answer_pull(self, envelope: Envelope, pull: Pull) -> None:
        turn = self._turn_of(envelope, pull.turn)
        if turn is None or not 0 <= pull.first <= pull.last < self._layers:
            return
        if turn.invite.ahead:
            self._forerun.answer(turn, pull)
        else:
            self.send_segment(turn, pull, turn.state)

    def send_segment(self, turn: Turn, pull: Pull, state: Any) -> Awaitable[None] | None:
        """Answer a request for some layers of a version."""
        sending = turn.sending.get(pull.first)
        if sending is not None and not sending.done():
            return None  # asked twice while the answer is on its way
        payload = self.mathematics.segment(state, turn.part, pull.first, pull.last)
        segment = Segment(payload, turn=pull.turn, first=pull.first, last=pull.last, begun=self.node.now())
        self.books.bytes_sent += segment.nbytes
        sent = self.node.send(turn.device, segment)
        turn.send(pull.first, sent)
        return sent

    def _answer_push(self, envelope: Envelope, push: Push) -> None:
        turn = self._turn_of(envelope, push.turn)
        if turn is None:
            return
        self.books.bytes_received += push.nbytes
        reason = self._push_refusal(turn, push)
        if reason is not None:
            self._refuse(turn, reason)
            return
        turn.take(push)
        self._patience.begin(self.node.now())
        self.node.send(envelope.sender, Accept(push.turn, push.first))
        self._run_ahead(turn, push)
        if turn.is_whole(self._layers):
            self._take_update(turn)

    def _push_refusal(self, turn: Turn, push: Push) -> str | None:
        """Why a segment of an update cannot be taken, told by its header."""
        if turn is not self._working.get(turn.device):
            return "it sent an update before it can have had the model"
        most = self._most_samples(turn.device) + turn.invite.gets
        if not 1 <= push.samples <= most:
            return f"it says that it trained on {push.samples} samples; in a turn it has 1 to {most}"
        return turn.misplaced(push, self._layers)

    def _refuse(self, turn: Turn, reason: str) -> None:
        """The round goes on without this update; its device is told why."""
        self._chronicle.note(turn.device, "refused", reason=reason)
        self.books.refused += 1
        self.node.send(turn.device, Release(turn.number, only=True, refused=reason))
        self._forerun.break_off()
        turn.cancel()
        if self._working.get(turn.device) is turn:
            del self._working[turn.device]
            self._refused[turn.device] = reason
            self._lineup.skip(turn.number)

    def _run_ahead(self, turn: Turn, push: Push) -> None:
        """With duplex transfers, pass on what everyone has sent; what cannot be merged is not."""
        if self._forerun.ahead is None:
            return
        if self.mathematics.refusal([piece for piece in turn.pieces if piece.first == push.first], turn.part) is None:
            self._forerun.pushed()
        else:
            self._forerun.break_off()

    def _take_update(self, turn: Turn) -> None:
        refusal = self.mathematics.refusal(turn.pieces, turn.part)
        if refusal is not None:
            self._refuse(turn, refusal)
            return
        del self._working[turn.device]
        self._arrived += 1
        self._served.add(turn.device)
        self.books.durations = (*self.books.durations, self.node.now() - turn.began)[-_REMEMBERED:]
        self._lineup.put(turn.number, turn)

    def _merge(self, turn: Turn) -> None:
        if not self._forerun.keep(turn):
            self.mathematics.add(turn.pieces, turn.part, turn.samples, self.books.version - turn.version)
        self.books.add(turn)
        if self._sharing is not None:
            self.books.batches[turn.device] = turn.samples

    # --- membership ------------------------------------------------------------------------------------------------

    def _join(self, device: str, incarnation: int) -> None:
        self._patience.stir(device, self.node.now())
        self._here.enter(device, incarnation)
        if self._begun:
            self._chronicle.note(device, "joined", incarnation=incarnation)

    def _lose(self, device: str, incarnation: int, reason: str) -> None:
        if not self._here.strike(device, incarnation):
            return
        self._late.pop(device, None)
        self._chronicle.note(device, "lost", incarnation=incarnation, reason=reason)
        turn = self._working.pop(device, None)
        if turn is not None:
            turn.cancel()
            self._lineup.skip(turn.number)
        self._forerun.lose(device, unfinished=turn is not None)

    def _shortfall(self) -> str:
        """Why the run cannot go on, in one sentence."""
        waited = f"nothing moved for {self._settings.patience}"
        if len(self._here) < self._settings.least:
            return f"{waited}: {len(self._here)} of the {self._settings.least} devices needed are here (rounds.least)"
        missing = ", ".join(sorted([*self._working, *self._late])[:5])
        return f"{waited} in round {self.books.round}: {self._arrived} updates came, still waiting for {missing}"

    # --- commit ----------------------------------------------------------------------------------------------------

    async def _commit(self) -> None:
        """The step from one version to the next: either all of it happens or none."""
        books, now = self.books, self.node.now()
        for turn in [] if self._settings.barrier.carries else list(self._working.values()):
            self._release(turn)
        self._lineup.close()
        self._served.clear()
        self._refused.clear()
        if not self._forerun.close():
            self.mathematics.step(self.step_factor(books.samples_now, len(books.merged)))
        merged = [[device, number] for device, number in books.merged]
        fields = {"round": books.round, "devices": merged, "samples": books.samples_now}
        self.node.record(Span(self.node.name, "round", self._opened, now, fields))
        self._chronicle.scalar("loss", books.loss_now)
        books.commit()
        self._arrived = 0
        self._take_over()
        self._patience.begin(now)
        if self._rules.wants_score(books.round):
            await self._measure()
        self._rules.watch(books, now)

    def step_factor(self, samples: int, devices: int) -> float:
        """On the learning rate, of a round of so many samples and devices."""
        round = self.books.round
        return self._settings.schedule.factor(round) * self._settings.scaling.factor(samples, devices, round)

    def _release(self, turn: Turn) -> None:
        """Late for the round: tell it to drop its work."""
        del self._working[turn.device]
        self._lineup.skip(turn.number)
        turn.cancel()
        self._late[turn.device] = turn
        self._reminders.watch(turn, self.node.now())
        self.books.late += 1
        self._chronicle.note(turn.device, "late")
        self.node.send(turn.device, Release(turn.number))

    async def _measure(self) -> None:
        """Score the newest version on held-out data; the coordinator's own time is not modelled."""
        score = await self.node.compute(Work([Step(0.0)], lambda pace: self.mathematics.evaluate()))
        self._chronicle.scored(score)

    # --- settle ----------------------------------------------------------------------------------------------------

    async def _settle(self) -> Ending | None:
        """Save where nothing is under way; where a checkpoint is due, wait for that. A quiet point costs a little time,
        but a run that is taken up from it goes on exactly as this one does."""
        carries = self._settings.barrier.carries
        if self._rules.save_due(self.books.round):
            if carries and self._working:
                self._draining = True
            while self._late:
                ending = await self._step(math.inf)
                if ending is not None:
                    return ending
        if not self._working and not self._late and not self._forerun.turns:
            self._rules.save(self.books, self.node.now())
        return None
