"""The steady state of the duplex policy: some layers are pulled while others are still being pushed.

    device    ... b3 b2 b1 |           f1 f2 f3 | b3 b2 b1 ...
    push         g3 |  g1 | g2 |                              a segment is sent once its last gradient exists
    server              merge 1, 2 …                          a layer is merged once every worker's gradient has arrived
    pull              p3   | p1 | p2 |                        a segment is pulled once all its layers are merged

Push and pull use one direction of the link each and do not compete. When several segments wait, the one nearest
to the input goes first, because the next forward pass needs it first; a segment in transfer is not
interrupted. There is no barrier: a worker's forward pass waits only for the layer it is about to run.

Nothing interrupts a backward pass, and both directions of a worker's link are idle again before its next one. So what a
worker pushes is determined by when its backward pass ends, and the whole future by these times of all workers. With
workers of one kind every iteration is the same: one pass over the segments gives its duration, exactly.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

__all__ = ["DuplexSchedule", "TransferTiming", "WorkerCosts", "WorkerCuts"]

_MAX_ITERATIONS = 64  # until workers of several kinds are taken to be in step
_MAX_PERIOD = 4
_SAME = 1e-9

_Arrivals = list[tuple[float, int]]  # when each segment arrives, in order of time


@dataclass(frozen=True, slots=True)
class WorkerCosts:
    """Seconds per layer, input to output, of one device and its link."""

    forward: Sequence[float]
    backward: Sequence[float]
    pull: Sequence[float]
    push: Sequence[float]


@dataclass(frozen=True, slots=True)
class WorkerCuts:
    """The cuts of one worker's pull and push."""

    pull: tuple[int, ...]
    push: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TransferTiming:
    """What a transfer costs beyond its layers.

    A segment occupies its link for `overhead` seconds more, arrives `latency` seconds after it was sent, and a layer
    can be pulled `merge` seconds after its last gradient has arrived.
    """

    overhead: float
    latency: float = 0.0
    merge: float = 0.0


class _CumulativeCosts(NamedTuple):
    """Seconds of the first n layers, n from 0 to all."""

    forward: list[float]
    backward: list[float]
    pull: list[float]
    push: list[float]


class DuplexSchedule:
    """Computes how long an iteration takes with given cuts, which all workers use in both directions."""

    def __init__(self, workers: Sequence[WorkerCosts], timing: TransferTiming) -> None:
        distinct = [worker for i, worker in enumerate(workers) if worker not in workers[:i]]
        self._workers = [
            _CumulativeCosts(*(list(accumulate(getattr(worker, name), initial=0.0)) for name in WorkerCosts.__slots__))
            for worker in distinct
        ]
        self._timing = timing
        self.layers = len(workers[0].forward)

    def iteration_s(self, cuts: Sequence[int]) -> float:
        """Seconds per iteration once it is steady."""
        bounds = [0, *(cut + 1 for cut in cuts), self.layers]
        pushed = [self._push_segments(worker, bounds) for worker in self._workers]
        if len(self._workers) == 1:
            return self._next_end(self._workers[0], bounds, 0.0, pushed[0])
        return self._iterate_workers(bounds, [{segment: at for at, segment in each} for each in pushed])

    def push_order(self, cuts: Sequence[int]) -> list[int]:
        """The segments, numbered from the input, in the order in which the first worker pushes them."""
        bounds = [0, *(cut + 1 for cut in cuts), self.layers]
        return [segment for _, segment in self._push_segments(self._workers[0], bounds)]

    def _iterate_workers(self, bounds: list[int], pushed: list[dict[int, float]]) -> float:
        """Let workers of several kinds run until all of them advance equally, in one iteration or up to four."""
        history = [[worker.forward[-1] + worker.backward[-1] for worker in self._workers]]
        for _ in range(_MAX_ITERATIONS):
            ends = history[-1]
            merged = sorted(
                (max(end + each[segment] for end, each in zip(ends, pushed, strict=True)), segment)
                for segment in range(len(bounds) - 1)
            )
            history.append(
                [self._next_end(worker, bounds, end, merged) for worker, end in zip(self._workers, ends, strict=True)]
            )
            period_s = _period_s(history)
            if period_s is not None:
                return period_s
        half = len(history) // 2
        mean_s = (max(history[-1]) - max(history[half])) / (len(history) - 1 - half)
        return max(mean_s, *(self._least_s(worker, len(bounds) - 1) for worker in self._workers))

    def _push_segments(self, worker: _CumulativeCosts, bounds: list[int]) -> _Arrivals:
        """When each segment can be pulled, if nobody else is waited for; relative to the end of the backward pass."""
        ready = [(-worker.backward[bounds[segment]], segment) for segment in range(len(bounds) - 2, -1, -1)]
        return self._transfer_segments(ready, worker.push, bounds, self._timing.latency + self._timing.merge)

    def _transfer_segments(
        self, ready: _Arrivals, cumulative: list[float], bounds: list[int], delay: float
    ) -> _Arrivals:
        """When segments arrive that are ready at these times; of those that wait, the nearest to the input is next."""
        overhead, now, upcoming, count = self._timing.overhead, ready[0][0], 0, len(ready)
        arrivals: _Arrivals = []
        waiting: list[int] = []
        for _ in range(count):
            if waiting:
                segment = heapq.heappop(waiting)
            else:
                ready_at, segment = ready[upcoming]
                upcoming += 1
                if ready_at > now:
                    now = ready_at
            now += overhead + cumulative[bounds[segment + 1]] - cumulative[bounds[segment]]
            arrivals.append((now + delay, segment))
            while upcoming < count and ready[upcoming][0] <= now:
                heapq.heappush(waiting, ready[upcoming][1])
                upcoming += 1
        return arrivals

    def _next_end(self, worker: _CumulativeCosts, bounds: list[int], end: float, merged: _Arrivals) -> float:
        """When the next backward pass ends, given the end of this one and when each segment is merged."""
        arrived = [0.0] * len(merged)
        for at, segment in self._transfer_segments(merged, worker.pull, bounds, self._timing.latency):
            arrived[segment] = at
        forward, now = worker.forward, end
        for segment, at in enumerate(arrived):
            if at > now:
                now = at
            now += forward[bounds[segment + 1]] - forward[bounds[segment]]
        return now + worker.backward[-1]

    def _least_s(self, worker: _CumulativeCosts, segments: int) -> float:
        """No iteration is shorter than the computation, or than either direction of the link takes."""
        link = max(worker.pull[-1], worker.push[-1]) + segments * self._timing.overhead
        return max(worker.forward[-1] + worker.backward[-1], link)


def _period_s(history: Sequence[Sequence[float]]) -> float | None:
    """Seconds per iteration if every worker advanced equally over the last one to four iterations."""
    for length in range(1, min(_MAX_PERIOD, len(history) - 1) + 1):
        advances = [now - before for now, before in zip(history[-1], history[-1 - length], strict=True)]
        if max(advances) - min(advances) <= _SAME * max(advances):
            return max(advances) / length
    return None
