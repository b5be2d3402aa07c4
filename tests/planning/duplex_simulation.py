"""An event-by-event simulation of the duplex policy, which the closed form of `duplex_schedule` is compared with."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from potluck.planning.segments.duplex_schedule import TransferTiming, WorkerCosts, WorkerCuts
from potluck.planning.segments.segment_plan import segment_ranges

__all__ = ["simulate_duplex"]

Span = tuple[int, int]


def simulate_duplex(
    workers: Sequence[WorkerCosts], cuts: Sequence[WorkerCuts], timing: TransferTiming, iterations: int
) -> list[float]:
    """When the last worker ends each iteration's backward pass. The first iteration starts with the model in place."""
    return _DuplexSimulation(workers, cuts, timing, iterations).run()


@dataclass(slots=True)
class _LinkState:
    """One direction of a link: its segments as spans of blocks, and the waiting ones, nearest to the input first."""

    spans: list[Span]
    seconds: list[float]
    segment_of: list[int]
    waiting: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass(slots=True)
class _WorkerState:
    """A worker's progress: `step` counts the forward blocks up and then the backward blocks down."""

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
    """Layers that no worker separates move as one block, so the cost grows with the segments, not the layers."""

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
        for worker in self.workers:
            self._start_compute(worker)
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
        return [max(ends) for ends in zip(*(worker.ends for worker in self.workers), strict=True)]

    def _make_worker(self, costs: WorkerCosts, cuts: WorkerCuts) -> _WorkerState:
        push, pull = self._make_link(costs.push, cuts.push), self._make_link(costs.pull, cuts.pull)
        return _WorkerState(
            forward=self._block_seconds(costs.forward),
            backward=self._block_seconds(costs.backward),
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
        seconds_held = [self.timing.overhead + sum(per_block[first : last + 1]) for first, last in spans]
        return _LinkState(
            spans, seconds_held, [i for i, (first, last) in enumerate(spans) for _ in range(first, last + 1)]
        )

    def _schedule_event(self, delay: float, action: Callable[[], None]) -> None:
        """Events at the same time run in the order in which they were scheduled."""
        self.count += 1
        heapq.heappush(self.events, (self.now + delay, self.count, action))

    def _start_compute(self, worker: _WorkerState) -> None:
        blocks = len(self.blocks)
        if worker.busy or worker.iteration == self.iterations:
            return
        if worker.step < blocks and worker.versions[worker.step] < worker.iteration:
            return
        worker.busy = True
        forward = worker.step < blocks
        delay = worker.forward[worker.step] if forward else worker.backward[2 * blocks - 1 - worker.step]
        self._schedule_event(delay, partial(self._on_computed, worker))

    def _on_computed(self, worker: _WorkerState) -> None:
        blocks = len(self.blocks)
        worker.busy = False
        if worker.step >= blocks:
            self._on_gradient(worker, 2 * blocks - 1 - worker.step)
        worker.step += 1
        if worker.step == 2 * blocks:
            worker.step = 0
            worker.iteration += 1
            worker.ends.append(self.now)
        self._start_compute(worker)

    def _on_gradient(self, worker: _WorkerState, block: int) -> None:
        index = worker.push.segment_of[block]
        if worker.push.spans[index][0] == block:
            self._enqueue_segment(worker.push, index, partial(self._on_pushed, worker))

    def _enqueue_segment(self, link: _LinkState, index: int, on_arrival: Callable[[int], None]) -> None:
        heapq.heappush(link.waiting, index)
        self._start_transfer(link, on_arrival)

    def _start_transfer(self, link: _LinkState, on_arrival: Callable[[int], None]) -> None:
        if link.busy or not link.waiting:
            return
        link.busy = True
        index = heapq.heappop(link.waiting)
        self._schedule_event(link.seconds[index], partial(self._on_sent, link, index, on_arrival))

    def _on_sent(self, link: _LinkState, index: int, on_arrival: Callable[[int], None]) -> None:
        link.busy = False
        self._schedule_event(self.timing.latency, partial(on_arrival, index))
        self._start_transfer(link, on_arrival)

    def _on_pushed(self, worker: _WorkerState, index: int) -> None:
        first, last = worker.push.spans[index]
        for block in range(first, last + 1):
            self.arrived_counts[block] += 1
            if self.arrived_counts[block] == len(self.workers):
                self.arrived_counts[block] = 0
                self._schedule_event(self.timing.merge, partial(self._on_merged, block))

    def _on_merged(self, block: int) -> None:
        for worker in self.workers:
            index = worker.pull.segment_of[block]
            worker.missing_blocks[index] -= 1
            if not worker.missing_blocks[index]:
                first, last = worker.pull.spans[index]
                worker.missing_blocks[index] = last - first + 1
                self._enqueue_segment(worker.pull, index, partial(self._on_pulled, worker))

    def _on_pulled(self, worker: _WorkerState, index: int) -> None:
        first, last = worker.pull.spans[index]
        for block in range(first, last + 1):
            worker.versions[block] += 1
        self._start_compute(worker)
