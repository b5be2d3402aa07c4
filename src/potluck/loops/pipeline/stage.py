"""A stage at work: it does what its course says is due, as soon as what it needs has arrived.

    before ──Activation──▶ forward ──Activation──▶ next
           ◀──Gradient─── backward ◀──Gradient───        then the step: version v becomes v + 1

The weights that a batch met on its way forward live on in its graph until it comes back; its gradient is applied to the
newest version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from potluck.journal import Span
from potluck.loops.messages import Bulky
from potluck.loops.node import COORDINATOR, Node, Step, Work
from potluck.loops.pipeline.costs import ChainCosts
from potluck.loops.pipeline.courses import Course
from potluck.loops.pipeline.examiner import Examiner
from potluck.loops.pipeline.line import Bell, Crew, Line
from potluck.loops.pipeline.mathematics import Sizes, StageMathematics
from potluck.loops.pipeline.messages import (
    Activation,
    Assign,
    Doing,
    Exam,
    Examine,
    ExamLabels,
    Gradient,
    Kept,
    Labels,
    Refused,
    Report,
    Resend,
    Stuck,
)
from potluck.loops.pipeline.replicator import Replicator
from potluck.loops.pipeline.settings import Pipeline
from potluck.loops.pipeline.shelf import Shelf
from potluck.payload import Payload
from potluck.planning.schedule.gate import Kind

__all__ = ["Stage", "Workshop"]

_STEPS_KEPT = 3


class Workshop(NamedTuple):
    """What a stage works with."""

    node: Node
    settings: Pipeline
    mathematics: StageMathematics
    costs: ChainCosts
    flops: float
    sizes: Sizes
    shelf: Shelf


class Flight(NamedTuple):
    """A part between its forward and its backward."""

    forwarded: Any
    version: int
    seconds: float


class Stage:
    """One device's layers in one term."""

    def __init__(self, shop: Workshop, assign: Assign, numbers: Any, failed: Callable[[BaseException], None]) -> None:
        self.node, self.settings, self.mathematics, self._costs, self._flops, self._sizes, self._shelf = shop
        self.term, self.start, self._made = assign.term, assign.version, assign.made
        self.place, self._stages = assign.order.index(shop.node.name), len(assign.order)
        self._order, self.window = assign.order, assign.windows[self.place]
        self._in_flight = max(1, *assign.windows) * self.settings.schedule.parts  # parts, at most
        ends = (0, *assign.cuts, self._costs.layers)
        self.first, self.last = ends[self.place], ends[self.place + 1] - 1
        self._stride = assign.stride
        self.versions: dict[int, Any] = {}
        self.steps: dict[int, tuple[Any, Any]] = {}  # what led to a version: a gradient and the buffers
        self.applied = self.start
        self._used = self.start  # the version that the latest forward met
        self._buffers = numbers.buffers
        self._secure = self.start
        self._total: Any = None
        self._losses = self._seconds = 0.0  # of the batch whose parts are coming back
        self._course: Course | None = None
        self._begun = -1
        self._finishing = False
        self._entering = self._latest = -1  # the newest batch and part whose forward was begun
        self._inbox: dict[tuple[str, int], Bulky] = {}
        self._awaited: list[tuple[str, int]] = []  # what its work waits for now
        self._log: dict[tuple[str, int], tuple[str, Bulky, asyncio.Task[None]]] = {}
        self._flights: dict[int, Flight] = {}
        self._examiner: Examiner | None = None
        self._bell = Bell()
        self._crew = Crew(failed)
        self.line = Line(self.node, self._crew)
        self._store(self.start, numbers)
        self._replicators = self._hire(assign)
        self._crew.start(self._work())

    # --- what it is told -------------------------------------------------------------------------------------------

    def begin(self, start: int, end: int) -> None:
        """A stretch of batches; said again, it changes nothing."""
        if start > self._begun:
            self._begun = start
            self._course = self.settings.schedule.course(self.window, start, end)
            self._bell.ring()
        self.report()

    def close(self, end: int | None) -> int | None:
        """End the stretch before a batch, or as soon as possible; gives back where it ends."""
        if self._course is None:
            return None
        if end is None:
            end = min(max(self._course.untouched(), self._entering + 1), self._course.end)
        if end < self._course.end:
            self._course.close(end)
            self._bell.ring()
        return self._course.end

    def finish(self) -> None:
        """Only apply what comes back from here on, and say when no more can come."""
        self._finishing = True
        self.close(None)
        self._bell.ring()

    def take(self, sender: str, message: Activation | Labels | Gradient) -> None:
        """What comes twice, since it was asked for again, is taken once."""
        if sender != self._giver(type(message).__name__) or not self._awaits(message):
            return
        reason = self._refusal(message)
        if reason is not None:
            self.refuse(sender, reason)
            return
        self._inbox[type(message).__name__, message.part] = message
        self._bell.ring()

    def refuse(self, sender: str, reason: str) -> None:
        """What a device sent cannot be used."""
        self.node.send(COORDINATOR, Refused(self.term, sender, reason))

    def _giver(self, what: str) -> str | None:
        """Who sends it to this stage."""
        place = 0 if what.endswith("Labels") else self.place + (1 if what == "Gradient" else -1)
        needless = self.is_first if what != "Gradient" else self.is_last
        return None if needless or (what.endswith("Labels") and not self.is_last) else self._order[place]

    def _awaits(self, message: Activation | Labels | Gradient) -> bool:
        if isinstance(message, Gradient):
            return message.part in self._flights
        next_part = max(self._latest + 1, self.start * self.settings.schedule.parts)
        return self._latest < message.part < next_part + 2 * self._in_flight

    def _refusal(self, message: Activation | Labels | Gradient) -> str | None:
        """Why what arrived cannot be computed with."""
        if isinstance(message, Gradient):
            return self.mathematics.gradient_refusal(self._flights[message.part].forwarded, message.payload)
        samples = self._sizes.count(message.part)
        if isinstance(message, Labels):
            return self.mathematics.labels_refusal(samples, message.payload)
        return self.mathematics.crossing_refusal(self.first, samples, message.payload)

    def resend(self, sender: str, asked: Resend) -> None:
        """Send again what someone misses, unless it is still on its way or not yet made."""
        found = self._log.get((asked.what, asked.part))
        if found is not None and found[0] == sender and found[2].done():
            self._send(*found[:2])

    def kept(self, keeper: str, kept: Kept) -> None:
        for replicator in self._replicators:
            if replicator.keeper == keeper:
                replicator.answered(kept)

    def secure(self, version: int) -> None:
        self._secure = max(self._secure, version)
        self._forget()

    def report(self, seconds: float = 0.0, loss: float | None = None) -> None:
        self.node.send(COORDINATOR, Report(self.term, self.applied, seconds, loss, self.line.read_meter()))

    def doing(self) -> Doing:
        """What it waits for, and what it has sent: for who wonders why no batch comes."""
        awaits = tuple((giver, what, part) for what, part in self._awaited if (giver := self._giver(what)) is not None)
        return Doing(self.term, awaits, tuple(key for key, sent in self._log.items() if sent[2].done()))

    def examine(self, examine: Examine) -> None:
        """Take part in measuring the model; said again, it changes nothing."""
        examiner = self._examiner_of(examine.attempt)
        if examiner is not None and not examiner.begun:
            examiner.begun = True
            self._crew.start(examiner.run(examine))

    def take_exam(self, sender: str, message: Exam | ExamLabels) -> None:
        if sender != self._giver(type(message).__name__) or not 0 <= message.number < self.mathematics.exams:
            return
        samples = self.mathematics.exam_size(message.number)
        if isinstance(message, Exam):
            reason = self.mathematics.crossing_refusal(self.first, samples, message.payload)
        else:
            reason = self.mathematics.labels_refusal(samples, message.payload)
        if reason is not None:
            self.refuse(sender, reason)
            return
        examiner = self._examiner_of(message.attempt)
        if examiner is not None:
            examiner.take(message)

    def _examiner_of(self, attempt: int) -> Examiner | None:
        """That of an attempt, which may be new; None for one that is void."""
        if self._examiner is None or self._examiner.attempt < attempt:
            self._examiner = Examiner(self, attempt)
        return self._examiner if self._examiner.attempt == attempt else None

    def end(self) -> None:
        self._crew.disband()

    def made(self, version: int) -> int:
        """The term that made one of its versions."""
        return self.term if version > self.start else self._made

    # --- the work --------------------------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        return self.place == 0

    @property
    def is_last(self) -> bool:
        return self.place == self._stages - 1

    @property
    def next_device(self) -> str:
        return self._order[self.place + 1]

    @property
    def last_device(self) -> str:
        return self._order[-1]

    def forward_seconds(self, samples: int) -> float:
        return self._costs.forward(self.first, self.last, samples) / self._flops

    async def _work(self) -> None:
        pause = float(self.settings.retry)
        while True:
            task = self._course.due() if self._course is not None else None
            self._awaited = missing = [] if task is None else self._missing(*task)
            if task is None or missing:
                if missing and self._finishing:
                    self.node.send(COORDINATOR, Stuck(self.term))
                if not await self._bell.wait(None if task is None else pause):
                    self._ask(missing)
                    pause = min(2 * pause, 4 * float(self.settings.retry))
                continue
            pause = float(self.settings.retry)
            course = self._course
            assert course is not None
            await (self._forward(task[1]) if task[0] == "forward" else self._backward(task[1], course))
            course.done(task[0])

    def _missing(self, kind: Kind, part: int) -> list[tuple[str, int]]:
        """What must arrive before a task can begin."""
        needed = []
        if kind == "backward" and not self.is_last:
            needed = ["Gradient"]
        elif kind == "forward" and not self.is_first:
            needed = ["Activation", "Labels"] if self.is_last else ["Activation"]
        if kind == "forward":
            self._check_version(part)
        return [(what, part) for what in needed if (what, part) not in self._inbox]

    def _check_version(self, part: int) -> None:
        """A part that says it met a version which is not here, nor can be, is not let in."""
        message = self._inbox.get(("Activation", part))
        if not isinstance(message, Activation) or not self.settings.schedule.vertical_sync:
            return
        if message.version not in self.versions:
            del self._inbox["Activation", part]
            self.refuse(self._order[self.place - 1], f"it sent a part that met version {message.version}")

    def _ask(self, missing: list[tuple[str, int]]) -> None:
        for what, part in missing:
            giver = self._giver(what)
            assert giver is not None
            self.node.send(giver, Resend(self.term, what, part))

    async def _forward(self, part: int) -> None:
        self._entering, self._latest = part // self.settings.schedule.parts, part
        version, arrived, labels = self._arrived(part)
        numbers, buffers, mathematics = self.versions[version], self._buffers, self.mathematics
        first, last, ahead = self.is_first, self.is_last, self._ahead(version)
        if first and not last:
            self._send(self._order[-1], Labels(mathematics.labels(part), term=self.term, part=part))

        def run(pace: object) -> Any:
            inputs = mathematics.inputs(part) if first else arrived
            targets = mathematics.labels(part) if first and last else labels
            return mathematics.forward(numbers, buffers, part, inputs, targets, ahead)

        forwarded, seconds = await self._compute("forward", part, version, run)
        self._buffers, self._used = forwarded.buffers, version
        self._flights[part] = Flight(forwarded, version, seconds)
        if last:
            self._losses += (forwarded.loss_now or 0.0) * mathematics.share(part)
        else:
            self._send(
                self._order[self.place + 1],
                Activation(forwarded.payload, term=self.term, part=part, version=version),
            )

    def _ahead(self, version: int) -> float:
        """Whole steps (smaller where the learning rate is) from the version that a batch meets to its own."""
        if not self.settings.schedule.predict:
            return 0.0
        return (self._entering - version) * self.settings.lr_schedule.factor(version)

    def _arrived(self, part: int) -> tuple[int, Any, Payload | None]:
        """The version that a part meets here, and what came with it."""
        if self.is_first:
            return self.applied, None, None
        message = self._inbox.pop(("Activation", part))
        assert isinstance(message, Activation)
        labels = self._inbox.pop(("Labels", part)) if self.is_last else None
        version = message.version if self.settings.schedule.vertical_sync else self.applied
        return version, message.payload, None if labels is None else labels.payload

    async def _backward(self, part: int, course: Course) -> None:
        flight = self._flights.pop(part)
        arrived = None if self.is_last else self._inbox.pop(("Gradient", part)).payload
        self._log.pop(("Activation", part), None)
        newest, total, mathematics = self.versions[self.applied], self._total, self.mathematics
        lr, steps = self.settings.lr_schedule.factor(self.applied), course.steps(part)

        def run(pace: object) -> Any:
            own, onward = mathematics.backward(flight.forwarded, arrived)
            mixed = mathematics.mix(total, own, mathematics.share(part))
            stepped = mathematics.step(newest, mixed, flight.forwarded.buffers, lr) if steps else None
            return mixed, onward, stepped

        (self._total, onward, stepped), seconds = await self._compute("backward", part, flight.version, run)
        self._seconds += flight.seconds + seconds
        if not self.is_first:
            self._send(self._order[self.place - 1], Gradient(onward, term=self.term, part=part))
        if steps:
            self._step(stepped, flight.forwarded.buffers)

    async def _compute(self, kind: Kind, part: int, version: int, run: Callable[[Any], Any]) -> tuple[Any, float]:
        """Do it, and say how long it took."""
        cost = self._costs.forward if kind == "forward" else self._costs.backward
        began = self.node.now()
        seconds = cost(self.first, self.last, self._sizes.count(part)) / self._flops
        result = await self.node.compute(Work([Step(seconds)], run, kind))
        now = self.node.now()
        fields = {"batch": part, "version": version, "stage": self.place, "term": self.term}
        self.node.record(Span(self.node.name, kind, began, now, fields))
        return result, now - began

    def _step(self, numbers: Any, buffers: Any) -> None:
        """The next version is there."""
        gradient, self._total = self._total, None
        self.applied += 1
        every = self.settings.schedule.aggregate
        if every and self.applied % every == 0:
            older = range(max(self.start, self.applied - self.window + 1), self.applied)
            numbers = self.mathematics.average([*(self.versions[version] for version in older), numbers])
        else:
            self.steps[self.applied] = (gradient, buffers)
        self._store(self.applied, numbers)
        now = self.node.now()
        fields = {"batch": self.applied - 1, "version": self.applied, "stage": self.place, "term": self.term}
        self.node.record(Span(self.node.name, "step", now, now, fields))
        self.report(self._seconds, self._losses if self.is_last else None)
        self._seconds = self._losses = 0.0
        self._forget()
        for replicator in self._replicators:
            replicator.stepped()

    # --- what it holds ---------------------------------------------------------------------------------------------

    def _store(self, version: int, numbers: Any) -> None:
        self.versions[version] = numbers
        self._shelf.put(version, self.made(version), self.first, self.last, numbers)

    def _forget(self) -> None:
        """Drop the versions that nobody can ask for any more."""
        used = self._used if self.settings.schedule.vertical_sync else self.applied
        aggregated = self.applied - self.window + 1 if self.settings.schedule.aggregate else self.applied
        floor = min(used, aggregated)

        def wanted(version: int) -> bool:
            return version >= floor or (version >= self._secure and self._is_mark(version))

        self.versions = {version: numbers for version, numbers in self.versions.items() if wanted(version)}
        self.steps = {version: step for version, step in self.steps.items() if version > self.applied - _STEPS_KEPT}
        own = (self.first, self.last)
        self._shelf.keep(lambda version, *layers: layers != own or version <= self.start or version in self.versions)

    def _is_mark(self, version: int) -> bool:
        central = self.settings.replication.central_stride()
        strides = [stride for stride in (self._stride, central) if stride]
        return version == self.start or any(version % stride == 0 for stride in strides)

    def _hire(self, assign: Assign) -> list[Replicator]:
        """Those who send its copies: to its keeper and to the coordinator, who keeps them where nobody else does."""
        keepers = {assign.keepers[self.place] if assign.keepers else COORDINATOR: assign.stride}
        keepers[COORDINATOR] = self.settings.replication.central_stride() or keepers.get(COORDINATOR, 0)
        found = [Replicator(self, keeper, stride) for keeper, stride in keepers.items() if stride]
        for replicator in found:
            self._crew.start(replicator.run())
        return found

    def _send(self, to: str, message: Bulky) -> None:
        part: int = message.part  # type: ignore[attr-defined]
        key = type(message).__name__, part
        self._log[key] = (to, message, self.line.send(to, message, batch=part))
        behind = part - 3 * max(1, self.window) * self.settings.schedule.parts
        for old in [key for key in self._log if key[1] < behind]:
            del self._log[old]
