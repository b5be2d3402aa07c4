"""Simulates a pipeline schedule from durations alone: no tensors, no faults.

Stages run their tasks in the schedule's order and links carry one message after another. The result shows how close
a schedule comes to a partition's bound, and gives the bars of a chart.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from potluck.planning.schedule.in_flight_windows import StageDurations
from potluck.planning.schedule.pipeline_schedules import StageTask, gpipe_schedule, one_f_one_b_schedule, required_task
from potluck.planning.schedule.stage_rules import Kind

__all__ = ["Mode", "PipelineTimeline", "TimedTask", "simulate_pipeline"]

Mode = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class TimedTask:
    """A task with its begin and end."""

    kind: Kind
    batch: int
    begin: float
    end: float


@dataclass(frozen=True)
class PipelineTimeline:
    """The tasks of each stage in order of time."""

    bars: tuple[tuple[TimedTask, ...], ...]

    @property
    def makespan(self) -> float:
        return max((bar.end for stage in self.bars for bar in stage), default=0.0)

    @property
    def period(self) -> float:
        """Mean seconds between two batches on the last stage, ignoring the first and last quarter of the run."""
        ends = [bar.end for bar in self.bars[-1] if bar.kind == "backward"]
        early, late = len(ends) // 4, len(ends) - 1 - len(ends) // 4
        return (ends[late] - ends[early]) / (late - early) if late > early else math.nan

    @property
    def throughput(self) -> float:
        """Batches (for GPipe: micro-batches) per second in the middle of the run."""
        return 1 / self.period if self.period else math.inf


def simulate_pipeline(
    durations: StageDurations,
    batches: int,
    mode: Mode = "1f1b",
    *,
    windows: Sequence[int] | None = None,
    micro_batches: int = 1,
    duplex: bool = True,
) -> PipelineTimeline:
    """Simulate a schedule with these seconds per task and per transfer; transfers overlap computation.

    For GPipe the seconds are those of one micro-batch.
    """
    stages = durations.stages
    schedule = (
        one_f_one_b_schedule(stages, batches, windows=windows)
        if mode == "1f1b"
        else gpipe_schedule(stages, batches, micro_batches)
    )
    return _PipelineSimulation(durations, list(schedule), duplex).run_to_end()


class _PipelineSimulation:
    """State of the simulation. Events are finished tasks and arrived messages; ties keep the order of scheduling."""

    def __init__(self, durations: StageDurations, schedule: list[StageTask], duplex: bool) -> None:
        self.durations = durations
        self.duplex = duplex
        self.waiting = [deque[StageTask]() for _ in range(durations.stages)]
        for task in schedule:
            self.waiting[task.stage].append(task)
        self.busy = [False] * durations.stages
        self.arrived: set[StageTask] = set()
        self.link_free: dict[tuple[int, Kind | None], float] = defaultdict(float)
        self.bars: list[list[TimedTask]] = [[] for _ in range(durations.stages)]
        self.events: list[tuple[float, int, bool, StageTask]] = []
        self.event_count = 0

    def run_to_end(self) -> PipelineTimeline:
        for stage in range(self.durations.stages):
            self._start_next_task(stage, 0.0)
        while self.events:
            now, _, computed, task = heapq.heappop(self.events)
            if computed:
                self._finish_task(task, now)
            else:
                self._receive_result(task, now)
        assert not any(self.waiting)
        return PipelineTimeline(tuple(map(tuple, self.bars)))

    def _start_next_task(self, stage: int, now: float) -> None:
        """Start the stage's next task if the stage is free and the input has arrived."""
        if self.busy[stage] or not self.waiting[stage]:
            return
        task = self.waiting[stage][0]
        need = required_task(task, self.durations.stages)
        if need is None or need in self.arrived:
            self.waiting[stage].popleft()
            self.busy[stage] = True
            seconds = self.durations.forward if task.kind == "forward" else self.durations.backward
            end = now + seconds[stage]
            self.bars[stage].append(TimedTask(task.kind, task.batch, now, end))
            self._schedule_event(end, True, task)

    def _finish_task(self, task: StageTask, now: float) -> None:
        self.busy[task.stage] = False
        self._send_result(task, now)
        self._start_next_task(task.stage, now)

    def _send_result(self, task: StageTask, now: float) -> None:
        """Send the result to the neighbour; at either end of the chain it stays on the device."""
        link = task.stage if task.kind == "forward" else task.stage - 1
        if link < 0 or link == self.durations.stages - 1:
            self.arrived.add(task)
            return
        direction = (link, task.kind if self.duplex else None)
        seconds = self.durations.down if task.kind == "forward" else self.durations.up
        self.link_free[direction] = max(now, self.link_free[direction]) + seconds[link]
        self._schedule_event(self.link_free[direction], False, task)

    def _receive_result(self, task: StageTask, now: float) -> None:
        self.arrived.add(task)
        self._start_next_task(task.stage + (1 if task.kind == "forward" else -1), now)

    def _schedule_event(self, time: float, computed: bool, task: StageTask) -> None:
        self.event_count += 1
        heapq.heappush(self.events, (time, self.event_count, computed, task))
