"""A pipeline in virtual time: stages do their tasks in the schedule's order, links carry one message after another.

It is arithmetic on durations, not a world: no tensors, no faults. It says how near a schedule comes to the bound of a
partition, and draws the bars for a chart.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from potluck.planning.schedule.gate import Kind
from potluck.planning.schedule.orders import Task, gpipe, needed, one_f_one_b
from potluck.planning.schedule.windows import Durations

__all__ = ["Bar", "Mode", "Timeline", "simulate_pipeline"]

Mode = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class Bar:
    """A task with its time."""

    kind: Kind
    batch: int
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The bars of each stage in order of time."""

    bars: tuple[tuple[Bar, ...], ...]

    @property
    def makespan(self) -> float:
        return max((bar.end for stage in self.bars for bar in stage), default=0.0)

    @property
    def period(self) -> float:
        """Mean seconds between two batches on the last stage, without the first and the last quarter of the run."""
        ends = [bar.end for bar in self.bars[-1] if bar.kind == "backward"]
        early, late = len(ends) // 4, len(ends) - 1 - len(ends) // 4
        return (ends[late] - ends[early]) / (late - early) if late > early else math.nan

    @property
    def throughput(self) -> float:
        """Batches (for GPipe: parts of batches) per second in the middle of the run."""
        return 1 / self.period if self.period else math.inf

    def utilisation(self, stage: int) -> float:
        """The share of the run in which a stage computes."""
        return sum(bar.end - bar.begin for bar in self.bars[stage]) / self.makespan if self.makespan else 0.0


def simulate_pipeline(
    stage_forward: Sequence[float],
    stage_backward: Sequence[float],
    transfer_forward: Sequence[float],
    transfer_backward: Sequence[float],
    batches: int,
    mode: Mode = "1f1b",
    *,
    windows: Sequence[int] | None = None,
    micro_batches: int = 1,
    duplex: bool = True,
) -> Timeline:
    """Run a schedule with these seconds per task and per transfer; transfers overlap computation.

    For GPipe the seconds are those of one of a batch's parts.
    """
    durations = Durations(stage_forward, stage_backward, transfer_forward, transfer_backward)
    stages = len(stage_forward)
    schedule = (
        one_f_one_b(stages, batches, windows=windows) if mode == "1f1b" else gpipe(stages, batches, micro_batches)
    )
    return _Run(durations, list(schedule), duplex).finish()


class _Run:
    """The state of the simulation; events are tasks that end and messages that arrive, ties in order of making."""

    def __init__(self, durations: Durations, schedule: list[Task], duplex: bool) -> None:
        self.durations = durations
        self.duplex = duplex
        self.waiting = [deque[Task]() for _ in range(durations.stages)]
        for task in schedule:
            self.waiting[task.stage].append(task)
        self.busy = [False] * durations.stages
        self.arrived: set[Task] = set()
        self.link_free: dict[tuple[int, Kind | None], float] = defaultdict(float)
        self.bars: list[list[Bar]] = [[] for _ in range(durations.stages)]
        self.events: list[tuple[float, int, bool, Task]] = []
        self.made = 0

    def finish(self) -> Timeline:
        for stage in range(self.durations.stages):
            self._begin(stage, 0.0)
        while self.events:
            now, _, computed, task = heapq.heappop(self.events)
            if computed:
                self._end(task, now)
            else:
                self._arrive(task, now)
        assert not any(self.waiting)
        return Timeline(tuple(map(tuple, self.bars)))

    def _begin(self, stage: int, now: float) -> None:
        """Start the stage's next task if the stage is free and its input is there."""
        if self.busy[stage] or not self.waiting[stage]:
            return
        task = self.waiting[stage][0]
        need = needed(task, self.durations.stages)
        if need is None or need in self.arrived:
            self.waiting[stage].popleft()
            self.busy[stage] = True
            seconds = self.durations.forward if task.kind == "forward" else self.durations.backward
            end = now + seconds[stage]
            self.bars[stage].append(Bar(task.kind, task.batch, now, end))
            self._later(end, True, task)

    def _end(self, task: Task, now: float) -> None:
        self.busy[task.stage] = False
        self._send(task, now)
        self._begin(task.stage, now)

    def _send(self, task: Task, now: float) -> None:
        """Put the result on the link to the neighbour; at the end of the chain the same device goes on with it."""
        link = task.stage if task.kind == "forward" else task.stage - 1
        if link < 0 or link == self.durations.stages - 1:
            self.arrived.add(task)
            return
        way = (link, task.kind if self.duplex else None)
        seconds = self.durations.down if task.kind == "forward" else self.durations.up
        self.link_free[way] = max(now, self.link_free[way]) + seconds[link]
        self._later(self.link_free[way], False, task)

    def _arrive(self, task: Task, now: float) -> None:
        self.arrived.add(task)
        self._begin(task.stage + (1 if task.kind == "forward" else -1), now)

    def _later(self, time: float, computed: bool, task: Task) -> None:
        self.made += 1
        heapq.heappush(self.events, (time, self.made, computed, task))
