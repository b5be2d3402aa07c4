"""Event by event, the duplex policy: layers come back while others still leave.

    device    ... b3 b2 b1 |           f1 f2 f3 | b3 b2 b1 ...
    push         g3 |  g1 | g2 |                              a segment leaves once its last gradient exists
    server              merge 1, 2 …                          a layer is merged once every worker's gradient is there
    pull              p3   | p1 | p2 |                        a segment comes back once all its layers are merged

Push and pull have a direction of the link each and do not compete. When several segments wait, the one nearest
to the input goes first, because the next forward pass needs it first; a segment that has begun is not
interrupted. There is no barrier: a worker's forward pass waits only for the layer it is about to run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from potluck.planning.segments.schedule import ranges

__all__ = ["Cuts", "Timing", "Worker", "rehearse"]

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Worker:
    """Seconds per layer, input to output, of one device and its link."""

    forward: Sequence[float]
    backward: Sequence[float]
    pull: Sequence[float]
    push: Sequence[float]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where one worker cuts its pull and its push."""

    pull: tuple[int, ...]
    push: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """What a transfer costs beyond its layers.

    A segment holds its link for `overhead`, lands `latency` after it left, and a layer may be pulled `merge`
    after the last gradient for it has landed.
    """

    overhead: float
    latency: float = 0.0
    merge: float = 0.0


def rehearse(workers: Sequence[Worker], cuts: Sequence[Cuts], timing: Timing, iterations: int) -> list[float]:
    """When the last worker ends each iteration's backward pass; the first iteration has its model at hand."""
    return _Rehearsal(workers, cuts, timing, iterations).run()


@dataclass(slots=True)
class _Link:
    """One direction of a link: its segments, as spans of blocks, and those that wait, nearest to the input first."""

    spans: list[Span]
    seconds: list[float]
    segment_of: list[int]
    waiting: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass(slots=True)
class _Seat:
    """Where a worker stands: `step` counts forward blocks up and then backward blocks down."""

    forward: list[float]
    backward: list[float]
    push: _Link
    pull: _Link
    missing: list[int]
    held: list[int]
    iteration: int = 0
    step: int = 0
    busy: bool = False
    ends: list[float] = field(default_factory=list)


class _Rehearsal:
    """Layers that no worker ever separates move as one block, so the work grows with segments and not with layers."""

    def __init__(self, workers: Sequence[Worker], cuts: Sequence[Cuts], timing: Timing, iterations: int) -> None:
        layers = len(workers[0].forward)
        self.blocks = ranges(sorted({cut for each in cuts for cut in (*each.pull, *each.push)}), layers)
        self.timing = timing
        self.iterations = iterations
        self.seats = [self._seat(worker, each) for worker, each in zip(workers, cuts, strict=True)]
        self.landed = [0] * len(self.blocks)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.count = 0

    def run(self) -> list[float]:
        for seat in self.seats:
            self._compute(seat)
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        return [max(ends) for ends in zip(*(seat.ends for seat in self.seats), strict=True)]

    def _seat(self, worker: Worker, cuts: Cuts) -> _Seat:
        push, pull = self._link(worker.push, cuts.push), self._link(worker.pull, cuts.pull)
        return _Seat(
            forward=self._blocked(worker.forward),
            backward=self._blocked(worker.backward),
            push=push,
            pull=pull,
            missing=[last - first + 1 for first, last in pull.spans],
            held=[0] * len(self.blocks),
        )

    def _blocked(self, seconds: Sequence[float]) -> list[float]:
        return [sum(seconds[first : last + 1]) for first, last in self.blocks]

    def _link(self, seconds: Sequence[float], cuts: Sequence[int]) -> _Link:
        index = {last: block for block, (_, last) in enumerate(self.blocks)}
        block_cuts = [index[cut] for cut in cuts]
        spans = list(ranges(block_cuts, len(self.blocks)))
        per_block = self._blocked(seconds)
        held = [self.timing.overhead + sum(per_block[first : last + 1]) for first, last in spans]
        return _Link(spans, held, [i for i, (first, last) in enumerate(spans) for _ in range(first, last + 1)])

    def _after(self, delay: float, happen: Callable[[], None]) -> None:
        """Events of the same moment happen in the order in which they were foreseen."""
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, happen))

    def _compute(self, seat: _Seat) -> None:
        blocks = len(self.blocks)
        if seat.busy or seat.iteration == self.iterations:
            return
        if seat.step < blocks and seat.held[seat.step] < seat.iteration:
            return
        seat.busy = True
        forward = seat.step < blocks
        delay = seat.forward[seat.step] if forward else seat.backward[2 * blocks - 1 - seat.step]
        self._after(delay, partial(self._computed, seat))

    def _computed(self, seat: _Seat) -> None:
        blocks = len(self.blocks)
        seat.busy = False
        if seat.step >= blocks:
            self._gradient(seat, 2 * blocks - 1 - seat.step)
        seat.step += 1
        if seat.step == 2 * blocks:
            seat.step = 0
            seat.iteration += 1
            seat.ends.append(self.now)
        self._compute(seat)

    def _gradient(self, seat: _Seat, block: int) -> None:
        index = seat.push.segment_of[block]
        if seat.push.spans[index][0] == block:
            self._offer(seat.push, index, partial(self._pushed, seat))

    def _offer(self, link: _Link, index: int, landed: Callable[[int], None]) -> None:
        heapq.heappush(link.waiting, index)
        self._send(link, landed)

    def _send(self, link: _Link, landed: Callable[[int], None]) -> None:
        if link.busy or not link.waiting:
            return
        link.busy = True
        index = heapq.heappop(link.waiting)
        self._after(link.seconds[index], partial(self._sent, link, index, landed))

    def _sent(self, link: _Link, index: int, landed: Callable[[int], None]) -> None:
        link.busy = False
        self._after(self.timing.latency, partial(landed, index))
        self._send(link, landed)

    def _pushed(self, seat: _Seat, index: int) -> None:
        first, last = seat.push.spans[index]
        for block in range(first, last + 1):
            self.landed[block] += 1
            if self.landed[block] == len(self.seats):
                self.landed[block] = 0
                self._after(self.timing.merge, partial(self._merged, block))

    def _merged(self, block: int) -> None:
        for seat in self.seats:
            index = seat.pull.segment_of[block]
            seat.missing[index] -= 1
            if not seat.missing[index]:
                first, last = seat.pull.spans[index]
                seat.missing[index] = last - first + 1
                self._offer(seat.pull, index, partial(self._pulled, seat))

    def _pulled(self, seat: _Seat, index: int) -> None:
        first, last = seat.pull.spans[index]
        for block in range(first, last + 1):
            seat.held[block] += 1
        self._compute(seat)
