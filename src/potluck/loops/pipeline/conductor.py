"""The coordinator's side of the pipeline loop.

    while nothing says stop:
        muster     wait until a device that holds the data is here
        settle     a new term: halt, take stock, choose a version and a layout, hand out the layers (terms.py)
        flow       batches flow until the stretch ends, someone is lost, or another layout pays
        rest       nothing is in flight: measure, save, look whether the run is over
        finish     after a death: what had passed the dead device is applied by those before it (terms.py)

The coordinator computes nothing and holds no data.
"""

from __future__ import annotations

import math

from potluck.errors import UserError
from potluck.loops.messages import Message, Stop
from potluck.loops.node import Node, Step, Work
from potluck.loops.pipeline.leader import Orders
from potluck.loops.pipeline.ledger import Ledger
from potluck.loops.pipeline.messages import (
    Begin,
    Close,
    Closed,
    Doing,
    Examine,
    Fetch,
    Halt,
    Inquire,
    Inventory,
    Kept,
    Missing,
    Piece,
    Ready,
    Refused,
    Replica,
    Report,
    Scored,
    Stuck,
)
from potluck.loops.pipeline.planner import Plan
from potluck.loops.pipeline.speeds import Speeds
from potluck.loops.pipeline.terms import Terms
from potluck.loops.pipeline.watch import Watch
from potluck.loops.progress import Ending

__all__ = ["Conductor"]

_STALL = 20  # times `retry` (or a batch's time) until held-out batches are sent anew
_APART = 20  # times `retry`, after which one who was cut off from a neighbour is asked back


class Conductor(Terms):
    """Leads the pipeline of one run."""

    def __init__(self, node: Node, orders: Orders) -> None:
        super().__init__(node, orders)
        self._speeds = Speeds(self._planner.slowness)
        self._start = 0  # of the stretch
        self._closing = self._closed = False
        self._wish: Ending | None = None  # what ends the run once nothing is in flight
        self._watch = Watch(float(orders.settings.retry))
        self._heard_at = 0.0
        self._exams, self._exam_samples = orders.archive.exams, orders.archive.exam_samples
        self._attempt = 0  # at measuring

    async def main(self) -> Ending:
        """Lead until a rule of the job, the user or a shortfall ends the run."""
        self._patience.begin(self._node.now())
        await self._catch_up()
        self._begun = True
        ending = self._rules.ending(self.books, self._node.now())
        if self.books.round == 0 and ending is None:
            await self._measure()
            self._rules.keep(self._archive.numbers, self.books, self._node.now())
        while ending is None:
            ending = await self._muster() or await self._settle() or await self._flow() or await self._finish()
        for device in self._here:
            self._node.send(device, Stop())
        return ending

    async def _muster(self) -> Ending | None:
        """Wait until someone who holds the data is here; what the others have is brought to safety first."""
        if not self._candidates() and self._last_plan is not None and self._here:
            await self._rescue()
        while not self._candidates():
            ending = self._unfit() or await self._next(math.inf)
            if ending is not None:
                return ending
        return None

    # --- flow ------------------------------------------------------------------------------------------------------

    async def _flow(self) -> Ending | None:
        """Let stretches flow, resting between them, until the run ends or another term is needed."""
        while not self._disturbed and not self._changed:
            ending = self._wish or self._rules.ending(self.books, self._node.now())
            if ending is None:
                ending = await self._stretch()
                if ending is not None or self._disturbed:
                    return ending
            ending = await self._rest()
            if ending is not None:
                return ending
        return None

    async def _stretch(self) -> Ending | None:
        """Let batches flow until none is in flight; only a failure ends the run here."""
        self._start, self._end = self.books.round, max(self._rules.next_stop(self.books.round), self.books.round + 1)
        self._closing = self._closed = False
        assert self._ledger is not None
        self._watch.begin(self._ledger.plan, self._node.now())
        self._nudge()
        while self.books.round < self._end and not self._disturbed:
            ending = await self._next(self._heard_at + self._pace(), self._watch.next_at)
            if ending is not None and ending.status == "failed":
                return ending
            self._watch_batches()
            self._wish = self._wish or ending
            if (self._wish is not None or self._changed) and not self._closing:
                self._closing = True
                self._nudge()
        return None

    def _pace(self) -> float:
        """How long nothing is heard before what the stages must know is said again."""
        retry = float(self._settings.retry)
        return retry if self._watch.asking else max(retry, 3 * self._watch.mean_s)

    def _watch_batches(self) -> None:
        """Where no batch comes, ask the stages; who does not answer, or cannot reach a neighbour, is left out."""
        now, watch = self._node.now(), self._watch
        if self._disturbed or now < watch.next_at:
            return
        silent, apart = (watch.silent(self._here), watch.apart()) if watch.asking else ([], None)
        for device in silent:
            self._leave_out(device, "does not answer")
        if not silent and apart is not None:
            self._leave_out(apart[0], f"is cut off from {apart[1]}", _APART)
        if not self._disturbed and watch.has_stalled(now):
            self._disturbed = True
            self._chronicle.note(self._node.name, "stalled", term=self._term)
        if not self._disturbed:
            watch.ask(now)
            self._chronicle.note(self._node.name, "overdue", term=self._term, usual=watch.usual_s)
            self._nudge()

    def _take_back(self, device: str) -> None:
        if self._aside.take_back(device):
            self._chronicle.note(device, "answers again", term=self._term)
            self._has_joined(device)

    def _nudge(self) -> None:
        """Say what the stages must know of the stretch, for the first time or because nothing was heard for a while."""
        assert self._ledger is not None
        self._heard_at = self._node.now()
        order = self._ledger.plan.order
        for device in order:
            self._node.send(device, Begin(self._term, self._start, self._end))
            if self._closed:
                self._node.send(device, Close(self._term, self._end))
        if self._closing and not self._closed:
            self._node.send(order[0], Close(self._term))
        for device in self._watch.unanswered(self._here) if self._watch.asking else ():
            self._node.send(device, Inquire(self._term))

    async def _next(self, until: float, look_at: float = math.inf) -> Ending | None:
        """Handle the next thing that happens, and give up when nothing moves for too long."""
        wakes_at = min(look_at, self._aside.next_at, self._broken_at)
        envelope = await self._node.receive(min(until, wakes_at, self._patience.ends_at))
        now = self._node.now()
        for device in self._aside.due(now):
            self._node.send(device, Halt(self._term, self._history.terms))
        if envelope is not None:
            self._handle(envelope)
        elif now >= self._patience.ends_at:
            return Ending("failed", self._shortfall())
        elif now >= until and self._ledger is not None:
            self._nudge()
        if now >= self._broken_at:
            self._disturbed = True
        return self._rules.interruption()

    # --- rest ------------------------------------------------------------------------------------------------------

    async def _rest(self) -> Ending | None:
        """Nothing is in flight: measure and save what is due."""
        books, ledger = self.books, self._ledger
        assert ledger is not None
        ending = self._wish or self._rules.ending(books, self._node.now())
        scored = self._rules.wants_score(books.round)
        if not (scored or self._rules.save_due(books.round) or ending):
            return None
        in_place = scored and self._settings.evaluation == "pipeline" and self._exams > 0
        if in_place:
            await self._examine(ledger)
        if not self._disturbed:
            await self._collect(ledger)
        if self._disturbed:
            return self._gave_up()
        if scored and not in_place:
            await self._measure()
        self._rules.keep(self._archive.numbers, books, self._node.now())
        return self._wish or self._rules.ending(books, self._node.now())

    async def _measure(self) -> None:
        """Score the archive's version on held-out data; the coordinator's own time is not modelled."""
        numbers = self._archive.numbers
        score = await self._node.compute(Work([Step(0.0)], lambda pace: self._rules.evaluate(numbers)))
        self._chronicle.scored(score)

    async def _examine(self, ledger: Ledger) -> None:
        """Let held-out batches flow through the stages; what gets lost on the way makes a new attempt."""
        order, last = ledger.plan.order, ledger.plan.order[-1]
        most_s = _STALL * max(float(self._settings.retry), self._exams * ledger.plan.period)
        while not self._disturbed:
            self._attempt += 1
            for device in order:
                self._node.send(device, Examine(self._term, self._attempt, self._exams))
            request = Examine(self._term, self._attempt, self._exams)
            answers = await self._ask({last: request}, most_s)
            found = answers.get(last)
            if isinstance(found, Scored):
                score = {"loss": found.loss / found.count}
                accuracy = {"accuracy": found.right / found.count} if found.right >= 0 else {}
                self._chronicle.scored(score | accuracy)
                return

    # --- what comes in ---------------------------------------------------------------------------------------------

    def _hear(self, sender: str, message: Message) -> None:
        self._watch.hear(sender)
        match message:
            case Refused() as refused:
                self._accused(sender, refused)
            case Inventory() as inventory:
                self._stock(sender, inventory)
                self._take_back(sender)
            case Ready():
                self._answer(sender, message)
                self._take_back(sender)
            case Doing() as doing:
                self._watch.told(sender, doing)
            case Missing():
                self._disturbed = True
            case Stuck():
                if self._ledger is not None:
                    self._ledger.stuck(sender)
            case Piece() as piece:
                self._take(sender, piece)
            case Fetch() as fetch:
                self._give(sender, fetch)
            case Replica() as replica:
                self._archive_copy(sender, replica)
            case Report() as report:
                self._report(sender, report)
            case Kept() as kept:
                self._note_copy(sender, kept)
            case Scored(attempt=attempt) as scored:
                if attempt == self._attempt:
                    self._score(sender, scored)
            case Closed(end=end):
                self._close(sender, end)

    def _note_copy(self, sender: str, kept: Kept) -> None:
        """Someone has a copy; only the word of the stage's keeper counts."""
        ledger = self._ledger
        if ledger is None or not ledger.start <= kept.version <= self._furthest:
            return
        keepers = zip(ledger.plan.stages, ledger.plan.keepers, strict=False)
        if (range(kept.first, kept.last + 1), sender) in keepers and ledger.kept(kept):
            self._say_secure(ledger.secure)

    def _score(self, sender: str, scored: Scored) -> None:
        if scored.count != self._exam_samples or scored.right > scored.count:
            self._refuse(sender, f"it measured {scored.right} right of {scored.count}, not of {self._exam_samples}")
            return
        self._answer(sender, scored)

    def _close(self, sender: str, end: int) -> None:
        """The first stage says where the stretch ends."""
        if self._ledger is None or sender != self._ledger.plan.order[0] or not self._closing or self._closed:
            return
        if not self._start <= end <= self._end:
            self._refuse(sender, f"it ends batches {self._start} to {self._end} before {end}")
            return
        self._closed, self._end = True, end
        self._nudge()

    def _report(self, sender: str, report: Report) -> None:
        ledger = self._ledger
        if ledger is None or sender not in ledger.applied:
            return
        sane = math.isfinite(report.seconds) and report.seconds >= 0 and report.sent >= 0
        if not (sane and ledger.start <= report.applied <= self._furthest):
            self._refuse(sender, f"it reports batch {report.applied} after {report.seconds} s and {report.sent} bytes")
            return
        self._heard_at = self._node.now()
        self.books.bytes_received += report.sent
        if ledger.report(sender, report):
            now = self._node.now()
            self._watch.moved(now)
            self._patience.reach(report.applied, now)
            self._watch_speed(ledger.plan, sender, min(report.seconds, now))
        while self.books.round < ledger.committed:
            self._commit(ledger)

    def _watch_speed(self, plan: Plan, sender: str, seconds: float) -> None:
        layers = plan.stages[plan.order.index(sender)]
        nominal = self._planner.nominal(sender, layers[0], layers[-1])
        if self._speeds.observe(sender, nominal, seconds) and self._settings.adaptation.on_change:
            self._look()

    def _commit(self, ledger: Ledger) -> None:
        """Every stage has applied the next batch."""
        now, batch = self._node.now(), self.books.round
        self._watch.observe(now - self._committed_at)
        self._stand_at(batch + 1)
        self.books.updates += 1
        self._chronicle.note(self._node.name, "committed", batch=batch, term=self._term)
        loss = ledger.loss(batch)
        if loss is not None:
            self._chronicle.scalar("loss", loss)
        self._rules.watch(self.books, now)
        adaptation = self._settings.adaptation
        if adaptation.every and (batch + 1 == adaptation.first or (batch + 1) % adaptation.every == 0):
            self._look()
        if batch + 1 < self._end:
            self._wish = self._wish or self._rules.ending(self.books, now)

    # --- adaptation and membership ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Would another layout pay?"""
        if self._ledger is None or self._changed or not self._candidates():
            return
        old, horizon = self._ledger.plan, self._settings.adaptation.horizon
        self._planner.forget()
        try:
            new = self._planner.plan(self._candidates())
        except UserError:
            return
        gain = self._planner.period(old) - new.period
        cost = self._planner.migration(old, new) if horizon and not new.same_as(old) else 0.0
        self._changed = not new.same_as(old) and gain * (horizon or 1) > cost
        self._foresee(self._candidates())

    def _has_joined(self, device: str) -> None:
        if self._settings.adaptation.join:
            self._look()

    def _has_left(self, device: str) -> None:
        self._speeds.forget(device)
        if self._ledger is None:
            return
        plan = self._ledger.plan
        self._ledger.lose(device)
        if device not in plan.order:
            self._changed = self._changed or device in plan.keepers  # whose copies need another place
        elif self._settings.recovery.notice == "connection":
            self._disturbed = True
        else:
            self._broken_at = min(self._broken_at, max(self._timer(plan), self._node.now()))

    def _timer(self, plan: Plan) -> float:
        """When the oldest batch in flight has taken several times the mean, from the moment it was let in.

        A batch takes as many periods as there are batches in flight, and all but one of them are over.
        """
        in_flight = plan.windows[0]
        return self._committed_at + (self._settings.recovery.factor * in_flight - (in_flight - 1)) * self._watch.mean_s
