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

from potluck.planning.segments.segment_plan import segment_ranges

__all__ = ["TransferTiming", "WorkerCosts", "WorkerCuts", "simulate_duplex"]

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """Seconds per layer, input to output, of one device and its link."""

    forward: Sequence[float]
    backward: Sequence[float]
    pull: Sequence[float]
    push: Sequence[float]


@dataclass(frozen=True, slots=True)
class WorkerCuts:
    """Where one worker cuts its pull and its push."""

    pull: tuple[int, ...]
    push: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferTiming:
    """What a transfer costs beyond its layers.

    A segment holds its link for `overhead`, lands `latency` after it left, and a layer may be pulled `merge`
    after the last gradient for it has landed.
    """

    overhead: float
    latency: float = 0.0
    merge: float = 0.0


def simulate_duplex(
    workers: Sequence[WorkerCosts], cuts: Sequence[WorkerCuts], timing: TransferTiming, iterations: int
) -> list[float]:
    """When the last worker ends each iteration's backward pass; the first iteration has its model at hand."""
    return _DuplexSimulation(workers, cuts, timing, iterations).run()


@dataclass(slots=True)
class _LinkState:
    """One direction of a link: its segments, as spans of blocks, and those that wait, nearest to the input first."""

    spans: list[Span]
    seconds: list[float]
    segment_of: list[int]
    waiting: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass(slots=True)
class _WorkerState:
    """Where a worker stands: `step` counts forward blocks up and then backward blocks down."""

    forward: list[float]
    backward: list[float]
    push: _LinkState
    pull: _LinkState
    missing_blocks: list[int]
    versions: list[int]
    iteration: int = 0
    step: int = 0
    busy: bool = False
    ends: list[float] = field(default_factory=list)


class _DuplexSimulation:
    """Layers that no worker ever separates move as one block, so the work grows with segments and not with layers."""

    def __init__(
        self, workers: Sequence[WorkerCosts], cuts: Sequence[WorkerCuts], timing: TransferTiming, iterations: int
    ) -> None:
        layers = len(workers[0].forward)
        self.blocks = segment_ranges(sorted({cut for each in cuts for cut in (*each.pull, *each.push)}), layers)
        self.timing = timing
        self.iterations = iterations
        self.workers = [self._make_worker(worker, each) for worker, each in zip(workers, cuts, strict=True)]
        self.arrived_counts = [0] * len(self.blocks)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.count = 0

    def run(self) -> list[float]:
        for seat in self.workers:
            self._start_compute(seat)
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        return [max(ends) for ends in zip(*(seat.ends for seat in self.workers), strict=True)]

    def _make_worker(self, worker: WorkerCosts, cuts: WorkerCuts) -> _WorkerState:
        push, pull = self._make_link(worker.push, cuts.push), self._make_link(worker.pull, cuts.pull)
        return _WorkerState(
            forward=self._block_seconds(worker.forward),
            backward=self._block_seconds(worker.backward),
            push=push,
            pull=pull,
            missing_blocks=[last - first + 1 for first, last in pull.spans],
            versions=[0] * len(self.blocks),
        )

    def _block_seconds(self, seconds: Sequence[float]) -> list[float]:
        return [sum(seconds[first : last + 1]) for first, last in self.blocks]

    def _make_link(self, seconds: Sequence[float], cuts: Sequence[int]) -> _LinkState:
        index = {last: block for block, (_, last) in enumerate(self.blocks)}
        block_cuts = [index[cut] for cut in cuts]
        spans = list(segment_ranges(block_cuts, len(self.blocks)))
        per_block = self._block_seconds(seconds)
        held = [self.timing.overhead + sum(per_block[first : last + 1]) for first, last in spans]
        return _LinkState(spans, held, [i for i, (first, last) in enumerate(spans) for _ in range(first, last + 1)])

    def _schedule_event(self, delay: float, happen: Callable[[], None]) -> None:
        """Events of the same moment happen in the order in which they were foreseen."""
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, happen))

    def _start_compute(self, seat: _WorkerState) -> None:
        blocks = len(self.blocks)
        if seat.busy or seat.iteration == self.iterations:
            return
        if seat.step < blocks and seat.versions[seat.step] < seat.iteration:
            return
        seat.busy = True
        forward = seat.step < blocks
        delay = seat.forward[seat.step] if forward else seat.backward[2 * blocks - 1 - seat.step]
        self._schedule_event(delay, partial(self._on_computed, seat))

    def _on_computed(self, seat: _WorkerState) -> None:
        blocks = len(self.blocks)
        seat.busy = False
        if seat.step >= blocks:
            self._on_gradient(seat, 2 * blocks - 1 - seat.step)
        seat.step += 1
        if seat.step == 2 * blocks:
            seat.step = 0
            seat.iteration += 1
            seat.ends.append(self.now)
        self._start_compute(seat)

    def _on_gradient(self, seat: _WorkerState, block: int) -> None:
        index = seat.push.segment_of[block]
        if seat.push.spans[index][0] == block:
            self._enqueue_segment(seat.push, index, partial(self._on_pushed, seat))

    def _enqueue_segment(self, link: _LinkState, index: int, landed: Callable[[int], None]) -> None:
        heapq.heappush(link.waiting, index)
        self._start_transfer(link, landed)

    def _start_transfer(self, link: _LinkState, landed: Callable[[int], None]) -> None:
        if link.busy or not link.waiting:
            return
        link.busy = True
        index = heapq.heappop(link.waiting)
        self._schedule_event(link.seconds[index], partial(self._on_sent, link, index, landed))

    def _on_sent(self, link: _LinkState, index: int, landed: Callable[[int], None]) -> None:
        link.busy = False
        self._schedule_event(self.timing.latency, partial(landed, index))
        self._start_transfer(link, landed)

    def _on_pushed(self, seat: _WorkerState, index: int) -> None:
        first, last = seat.push.spans[index]
        for block in range(first, last + 1):
            self.arrived_counts[block] += 1
            if self.arrived_counts[block] == len(self.workers):
                self.arrived_counts[block] = 0
                self._schedule_event(self.timing.merge, partial(self._on_merged, block))

    def _on_merged(self, block: int) -> None:
        for seat in self.workers:
            index = seat.pull.segment_of[block]
            seat.missing_blocks[index] -= 1
            if not seat.missing_blocks[index]:
                first, last = seat.pull.spans[index]
                seat.missing_blocks[index] = last - first + 1
                self._enqueue_segment(seat.pull, index, partial(self._on_pulled, seat))

    def _on_pulled(self, seat: _WorkerState, index: int) -> None:
        first, last = seat.pull.spans[index]
        for block in range(first, last + 1):
            seat.versions[block] += 1
        self._start_compute(seat)
