"""The coordinator's side of the pipeline loop.

    while nothing says stop:
        muster     wait until a device that holds the data is here
        settle     a new term: halt, take stock, choose a version and a layout, hand out the layers
        flow       batches flow until the stretch ends, someone is lost, or another layout pays
        rest       nothing is in flight: measure, save, look whether the run is over

One coroutine reads one mailbox; every wait has an end. The coordinator computes nothing and holds no data; its archive
is the last resort where layers are lost.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Collection, Mapping
from typing import Any

from potluck.errors import UserError
from potluck.journal import Instant, Scalar, Span
from potluck.loops.messages import Joined, Lost, Message, Stop
from potluck.loops.node import COORDINATOR, Envelope, Node, Step, Work
from potluck.loops.patience import Patience
from potluck.loops.pipeline.archive import Archive
from potluck.loops.pipeline.history import History
from potluck.loops.pipeline.ledger import Ledger
from potluck.loops.pipeline.messages import (
    Assign,
    Begin,
    Close,
    Closed,
    Fetch,
    Halt,
    Inventory,
    Kept,
    Missing,
    Piece,
    Ready,
    Replica,
    Report,
    Secure,
)
from potluck.loops.pipeline.planner import Plan, Planner
from potluck.loops.pipeline.rules import PipelineRules
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.sourcing import Held, newest_whole, origins
from potluck.loops.pipeline.speeds import Speeds
from potluck.loops.progress import Books, Ending

__all__ = ["Conductor"]

_SILENCE = 4  # times `retry`, after which a new term begins without those who do not answer
_STALL = 20  # times `retry` (or a batch's time) without any news from a stage, after which a new term begins


class Conductor:
    """Leads the pipeline of one run."""

    def __init__(
        self,
        node: Node,
        settings: Pipeline,
        fleet: tuple[str, ...],
        planner: Planner,
        archive: Archive,
        rules: PipelineRules,
        books: Books,
        samples: int,
    ) -> None:
        self._node = node
        self._settings = settings
        self._fleet = fleet
        self._planner = planner
        self._archive = archive
        self._rules = rules
        self.books = books
        self._samples = samples  # of a batch
        self._speeds = Speeds(planner.slowness)
        self._history = History()
        self._here: dict[str, int] = {}  # device -> incarnation
        self._ledger: Ledger | None = None  # of the term that runs
        self._last_plan: Plan | None = None
        self._term = books.turn
        self._secure = 0
        self._present: set[str] = set()  # who has entered the term
        self._start = self._end = 0  # of the stretch
        self._closing = self._closed = False
        self._wish: Ending | None = None  # what ends the run once nothing is in flight
        self._changed = False  # another layout pays
        self._disturbed = False  # someone is lost, and a new term must begin
        self._broken_at = math.inf  # when a death will be noticed, where only the batch timer tells
        self._answers: dict[str, Message] | None = None  # to the question that is open
        self._giving: dict[tuple[str, int], Awaitable[None]] = {}
        self._committed_at = 0.0
        self._mean_s = 0.0  # between two batches
        self._heard_at = self._moved_at = 0.0
        self._patience = Patience(settings.patience)
        self._begun = False

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
            ending = await self._muster() or await self._settle() or await self._flow()
        for device in self._here:
            self._node.send(device, Stop())
        return ending

    # --- muster ----------------------------------------------------------------------------------------------------

    async def _muster(self) -> Ending | None:
        """Wait until someone who holds the data is here; what the others have is brought to safety first."""
        if not self._candidates() and self._last_plan is not None and self._here:
            await self._rescue()
        while not self._candidates():
            ending = await self._next(math.inf)
            if ending is not None:
                return ending
        return None

    async def _catch_up(self) -> None:
        """Take note of everyone whose arrival is in the mailbox already."""
        while (envelope := await self._node.receive(self._node.now())) is not None:
            self._handle(envelope)

    def _candidates(self, among: Collection[str] | None = None) -> list[str]:
        """Who is here, in the fleet's order, one who holds the data first; nobody if none of them does."""
        here = self._here if among is None else among
        central = next((holder for holder in self._holders() if holder in here), None)
        if central is None:
            return []
        return [central, *(name for name in self._fleet if name in here and name != central)]

    def _holders(self) -> tuple[str, ...]:
        return (self._settings.central or self._fleet[0], *self._settings.sources)

    async def _rescue(self) -> None:
        """The data is out of reach: save the newest version that the others can put together."""
        held = await self._take_stock()
        version = newest_whole(held, self._planner.layers)
        if version is None or version <= self._archive.version:
            return
        self._restart_from(version)
        givers: dict[str, list[Fetch]] = {}
        for origin in origins(held, COORDINATOR, range(self._planner.layers), version):
            request = Fetch(self._term, origin.first, origin.last, version)
            givers.setdefault(origin.device, []).append(request)
        while givers and not self._disturbed:
            await self._ask({device: requests.pop() for device, requests in givers.items()})
            givers = {device: requests for device, requests in givers.items() if requests}
        if self._archive.version == version:
            self._rules.keep(self._archive.numbers, self.books, self._node.now())

    # --- settle ----------------------------------------------------------------------------------------------------

    async def _settle(self) -> Ending | None:
        """Begin a term; if someone is lost on the way, `_disturbed` stays set and it must be tried again."""
        began, after_death = self._node.now(), self._disturbed
        self._planner.forget() if not after_death else None
        held = await self._take_stock()
        there = self._candidates(self._present)
        if self._disturbed or not there:
            self._disturbed = True
            return self._gave_up()
        try:
            plan = self._settings.recovery.layout(self._planner, self._last_plan if after_death else None, there)
        except UserError as error:
            return Ending("failed", f"no layout for {', '.join(there)}: {error}")
        self._foresee(there)
        plan = self._planner.place_copies(plan, there)
        version, mixed = self._choose(held, after_death)
        await self._ask(self._assigns(plan, held, version, mixed))
        if self._disturbed:
            return self._gave_up()
        self._restart_from(version)
        self._ledger = Ledger(plan, version, max(self._secure, self._archive.version))
        self._last_plan = plan
        self._tell_of(plan, version, began, after_death)
        return None

    async def _take_stock(self) -> list[Held]:
        """Begin a new term: everybody stops, and tells what it has."""
        self._secure = self._ledger.secure if self._ledger is not None else 0
        self._disturbed, self._broken_at, self._changed = False, math.inf, False
        self._ledger = None
        self._giving.clear()
        self._term += 1
        self._archive.begin_term()
        halts = {device: Halt(self._term, self._history.terms) for device in self._here}
        answers = await self._ask(halts, _SILENCE * float(self._settings.retry))
        self._present = {device for device in answers if device in self._here}
        stock = [answer.held for device, answer in answers.items() if isinstance(answer, Inventory)]
        archived = Held(COORDINATOR, 0, self._planner.layers - 1, self._archive.version, self._archive.made)
        return [*(each for held in stock for each in held), archived]

    def _choose(self, held: list[Held], after_death: bool) -> tuple[int, bool]:
        """The version to go on from, and whether layers may be of other versions than that."""
        if after_death and self._settings.recovery.from_archive:
            held[:] = held[-1:]
        if after_death and not self._settings.recovery.consistent:
            return self.books.round, True
        version = newest_whole(held, self._planner.layers)
        assert version is not None, "the archive is whole"
        return version, False

    def _assigns(self, plan: Plan, held: list[Held], version: int, mixed: bool) -> dict[str, Message]:
        made = self._history.made(version)
        return {
            device: Assign(
                self._term, plan.cuts, plan.order, plan.windows, plan.stride, plan.keepers, version, made,
                tuple(origins(held, device, layers, None if mixed else version)),
            )
            for device, layers in zip(plan.order, plan.stages, strict=True)
        }  # fmt: skip

    def _restart_from(self, version: int) -> None:
        """From here on, this version is where the run stands."""
        if version < self.books.round:
            self._note(self._node.name, "rolled back", term=self._term, before=self.books.round, to=version)
        for batch in range(self.books.round, version):  # the reports of it were still on their way
            self._note(self._node.name, "committed", batch=batch, term=self._history.made(batch + 1))
        self._history.begin(self._term, version)
        self.books.turn = self._term
        self._stand_at(version)

    def _tell_of(self, plan: Plan, version: int, began: float, after_death: bool) -> None:
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
        self._note(self._node.name, "partition", **fields, **more)

    def _foresee(self, candidates: list[str]) -> None:
        """Have plans ready for each single death."""
        try:
            self._planner.foresee(candidates)
        except UserError:
            self._planner.forget()

    def _gave_up(self) -> Ending | None:
        return Ending("failed", self._shortfall()) if self._node.now() >= self._patience.ends_at else None

    async def _ask(self, requests: Mapping[str, Message], most_s: float = math.inf) -> dict[str, Message]:
        """Ask devices until all have answered, or for at most so long; the loss of one of them disturbs."""
        answers: dict[str, Message] = {}
        self._answers = answers
        pause, again_at, ends_at = float(self._settings.retry), -math.inf, self._node.now() + most_s
        while not self._disturbed and any(device not in answers for device in requests):
            now = self._node.now()
            if now >= self._patience.ends_at:
                self._disturbed = True
            elif now >= ends_at and answers:
                break
            elif now >= again_at:
                for device, request in requests.items():
                    if device not in answers:
                        self._node.send(device, request)
                again_at, pause = now + pause, min(2 * pause, 4 * float(self._settings.retry))
            else:
                waits = [again_at, self._patience.ends_at, *([ends_at] if answers else [])]
                envelope = await self._node.receive(min(waits))
                if envelope is not None:
                    self._handle(envelope)
        self._answers = None
        return answers

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
        self._moved_at = self._node.now()
        self._nudge()
        while self.books.round < self._end and not self._disturbed:
            ending = await self._next(self._heard_at + max(float(self._settings.retry), 3 * self._mean_s))
            if ending is not None and ending.status == "failed":
                return ending
            self._watch_for_stall()
            self._wish = self._wish or ending
            if (self._wish is not None or self._changed) and not self._closing:
                self._closing = True
                self._nudge()
        return None

    def _watch_for_stall(self) -> None:
        """Messages get lost and are asked for again; where even that leads nowhere, a new term may."""
        period = self._ledger.plan.period if self._ledger is not None else 0.0
        longest = _STALL * max(float(self._settings.retry), self._mean_s, period)
        if self._node.now() - self._moved_at > longest and not self._disturbed:
            self._disturbed = True
            self._note(self._node.name, "stalled", term=self._term)

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

    async def _next(self, until: float) -> Ending | None:
        """Handle the next thing that happens, and give up when nothing moves for too long."""
        envelope = await self._node.receive(min(until, self._patience.ends_at, self._broken_at))
        now = self._node.now()
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
        scored, saved = self._rules.wants_score(books.round), self._rules.save_due(books.round)
        if not (scored or saved or ending):
            return None
        if self._archive.version != books.round or self._archive.made != self._history.made(books.round):
            stages = zip(ledger.plan.order, ledger.plan.stages, strict=True)
            await self._ask(
                {name: Fetch(self._term, layers[0], layers[-1], books.round) for name, layers in stages}
            )  # fmt: skip
            if self._disturbed:
                return self._gave_up()
        if scored:
            await self._measure()
        self._rules.keep(self._archive.numbers, books, self._node.now())
        return self._wish or self._rules.ending(books, self._node.now())

    async def _measure(self) -> None:
        """Score the archive's version on held-out data; the coordinator's own time is not modelled."""
        numbers = self._archive.numbers
        score = await self._node.compute(Work([Step(0.0)], lambda pace: self._rules.evaluate(numbers)))
        self.books.score = {name: value for name, value in score.items() if math.isfinite(value)}
        for name, value in self.books.score.items():
            self._scalar(f"test_{name}", value)

    # --- what comes in ---------------------------------------------------------------------------------------------

    def _handle(self, envelope: Envelope) -> None:
        message, sender = envelope.message, envelope.sender
        if isinstance(message, Joined):
            self._join(message.device, message.incarnation)
        elif isinstance(message, Lost):
            self._lose(message)
        elif self._here.get(sender) == envelope.incarnation and getattr(message, "term", None) == self._term:
            self._patience.stir(sender, self._node.now())
            self._hear(sender, message)

    def _hear(self, sender: str, message: Message) -> None:
        match message:
            case Inventory() | Ready():
                self._answer(sender, message)
            case Missing():
                self._disturbed = True
            case Piece() as piece:
                self._answer(sender, piece)
                made = self._history.made(piece.version)
                self._secured(self._archive.add(piece.version, made, piece.first, piece.last, piece.payload))
            case Fetch() as fetch:
                self._give(sender, fetch)
            case Replica() as replica:
                self._archive_copy(sender, replica)
            case Report() as report:
                self._report(sender, report)
            case Kept() as kept:
                if self._ledger is not None and self._ledger.kept(kept):
                    self._say_secure(self._ledger.secure)
            case Closed(end=end):
                if self._closing and not self._closed:
                    self._closed, self._end = True, end
                    self._nudge()

    def _answer(self, sender: str, message: Message) -> None:
        if self._answers is not None:
            self._answers[sender] = message

    def _give(self, sender: str, fetch: Fetch) -> None:
        """Send layers of the archive, unless they are on their way."""
        sending = self._giving.get((sender, fetch.first))
        if isinstance(sending, asyncio.Future) and not sending.done():
            return
        if fetch.version != self._archive.version:
            self._disturbed = True
            return
        payload = self._archive.piece(fetch.first, fetch.last)
        piece = Piece(payload, term=self._term, first=fetch.first, last=fetch.last, version=fetch.version)
        self.books.bytes_sent += piece.nbytes
        self._giving[sender, fetch.first] = self._node.send(sender, piece)

    def _archive_copy(self, sender: str, replica: Replica) -> None:
        whole = self._archive.take(sender, replica)
        if whole is not None:
            self._node.send(sender, Kept(self._term, replica.first, replica.last, replica.version))
            self._secured(whole)

    def _secured(self, whole: bool) -> None:
        if whole and self._ledger is not None and self._ledger.secured(self._archive.version):
            self._say_secure(self._archive.version)

    def _say_secure(self, version: int) -> None:
        for device in self._here:
            self._node.send(device, Secure(self._term, version))

    def _report(self, sender: str, report: Report) -> None:
        ledger = self._ledger
        if ledger is None or sender not in ledger.applied:
            return
        self._heard_at = self._node.now()
        self.books.bytes_received += report.sent
        if ledger.report(sender, report):
            self._moved_at = self._node.now()
            self._patience.begin(self._moved_at)
            self._watch_speed(ledger.plan, sender, report.seconds)
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
        took = now - self._committed_at
        self._mean_s = took if not self._mean_s else 0.9 * self._mean_s + 0.1 * took
        self._stand_at(batch + 1)
        self.books.updates += 1
        self._note(self._node.name, "committed", batch=batch, term=self._term)
        loss = ledger.loss(batch)
        if loss is not None:
            self._scalar("loss", loss)
        self._rules.watch(self.books, now)
        adaptation = self._settings.adaptation
        if adaptation.every and (batch + 1 == adaptation.first or (batch + 1) % adaptation.every == 0):
            self._look()
        if batch + 1 < self._end:
            self._wish = self._wish or self._rules.ending(self.books, now)

    def _stand_at(self, version: int) -> None:
        self.books.round = self.books.version = version
        self.books.samples = version * self._samples
        self._committed_at = self._node.now()

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

    def _join(self, device: str, incarnation: int) -> None:
        self._patience.stir(device, self._node.now())
        self._here[device] = incarnation
        if self._begun:
            self._note(device, "joined", incarnation=incarnation)
            if self._settings.adaptation.join:
                self._look()

    def _lose(self, lost: Lost) -> None:
        if self._here.get(lost.device) != lost.incarnation:
            return
        del self._here[lost.device]
        self._speeds.forget(lost.device)
        self._note(lost.device, "lost", incarnation=lost.incarnation, reason=lost.reason)
        if self._answers is not None:
            self._disturbed = True
        elif self._ledger is not None and lost.device in self._ledger.applied:
            if self._settings.recovery.notice == "connection":
                self._disturbed = True
            else:
                self._broken_at = min(self._broken_at, max(self._timer(self._ledger.plan), self._node.now()))

    def _timer(self, plan: Plan) -> float:
        """When the oldest batch in flight has taken several times the mean, from the moment it was let in.

        A batch takes as many periods as there are batches in flight, and all but one of them are over.
        """
        in_flight = plan.windows[0]
        return self._committed_at + (self._settings.recovery.factor * in_flight - (in_flight - 1)) * self._mean_s

    # --- words -----------------------------------------------------------------------------------------------------

    def _shortfall(self) -> str:
        """Why the run cannot go on, in one sentence."""
        waited = f"nothing moved for {self._settings.patience}"
        if not self._candidates():
            gone = " or ".join(self._holders())
            return f"{waited}: {gone} holds the data and is gone; the run can be resumed from batch {self.books.round}"
        missing = [name for name in self._candidates() if self._answers is not None and name not in self._answers]
        whom = f"still waiting for {', '.join(missing[:5])}" if missing else f"at batch {self.books.round}"
        return f"{waited}: {whom}"

    def _note(self, device: str, name: str, **fields: Any) -> None:
        self._node.record(Instant(device, name, self._node.now(), {"round": self.books.round, **fields}))

    def _scalar(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return  # JSON has no such number
        fields = {"round": self.books.round, "bytes": self.books.traffic, "samples": self.books.samples}
        self._node.record(Scalar(self._node.name, name, self._node.now(), value, fields))
