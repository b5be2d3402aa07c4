"""What a stage does next: the schedules as parts of a job, and one stage's way through a range of batches.

At the end of a range nothing is in flight. Micro-batches are what flows: a batch or a fraction of it, numbered
consecutively through the batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Protocol

import msgspec

from potluck.planning.schedule import (
    StageDurations,
    StageProgress,
    due_task,
    filling_windows,
    published_windows,
    simulate_pipeline,
    steady_period,
)
from potluck.planning.schedule.stage_rules import Kind
from potluck.settings import Part, doc

__all__ = [
    "GPipeSchedule",
    "GPipeStageSchedule",
    "OneFOneBSchedule",
    "OneFOneBStageSchedule",
    "PipelineSchedule",
    "SingleDeviceSchedule",
    "StageSchedule",
]

Count = Annotated[int, msgspec.Meta(ge=0)]


class StageSchedule(Protocol):
    """One stage's way through a range of batches: at most one task is due at any moment."""

    @property
    def end_batch(self) -> int:
        """The batch before which the range ends."""

    def next_task(self) -> tuple[Kind, int] | None:
        """The next task and its micro-batch; None when the range is done."""

    def complete_task(self, kind: Kind) -> None:
        """The task that was due is complete."""

    def updates_after(self, micro_batch: int) -> bool:
        """Whether the weights are updated after this micro-batch's backward pass."""

    def first_unstarted_batch(self) -> int:
        """The first batch that was not started: the range can still end before it."""

    def end_before(self, end: int) -> None:
        """End the range before this batch."""


class OneFOneBStageSchedule:
    """Asynchronous 1F1B: the gating rule with this stage's window, which counts micro-batches."""

    def __init__(self, window: int, start: int, end: int, micro_batches: int = 1) -> None:
        self._micro_batches = micro_batches
        self._progress = StageProgress.at_start(window, end * micro_batches, start * micro_batches)

    @property
    def end_batch(self) -> int:
        return self._progress.end // self._micro_batches

    def next_task(self) -> tuple[Kind, int] | None:
        return due_task(self._progress)

    def complete_task(self, kind: Kind) -> None:
        self._progress = self._progress.after_task(kind)

    def updates_after(self, micro_batch: int) -> bool:
        return (micro_batch + 1) % self._micro_batches == 0

    def first_unstarted_batch(self) -> int:
        return math.ceil((self._progress.forward + 1) / self._micro_batches)

    def end_before(self, end: int) -> None:
        self._progress = replace(self._progress, end=end * self._micro_batches)


class GPipeStageSchedule:
    """GPipe: all micro-batches of a batch forward, then backward in reverse order, then the step."""

    def __init__(self, micro_batches: int, start: int, end: int) -> None:
        self.end_batch = end
        self._micro_batches = micro_batches
        self._batch = start
        self._task_index = 0  # among the 2 × micro-batches tasks of the batch

    def next_task(self) -> tuple[Kind, int] | None:
        if self._batch >= self.end_batch:
            return None
        first, turned = self._batch * self._micro_batches, self._task_index - self._micro_batches
        return (
            ("forward", first + self._task_index)
            if turned < 0
            else ("backward", first + self._micro_batches - 1 - turned)
        )

    def complete_task(self, kind: Kind) -> None:
        self._task_index += 1
        if self._task_index == 2 * self._micro_batches:
            self._batch, self._task_index = self._batch + 1, 0

    def updates_after(self, micro_batch: int) -> bool:
        return micro_batch % self._micro_batches == 0

    def first_unstarted_batch(self) -> int:
        return self._batch + (self._task_index > 0)

    def end_before(self, end: int) -> None:
        self.end_batch = end


class PipelineSchedule(Part, frozen=True, kw_only=True):
    """Order of forward and backward passes on a stage."""

    vertical_sync: Annotated[bool, doc("A batch uses the same version of the weights on every stage.")] = False
    aggregate: Annotated[Count, doc("Batches after which a stage averages the versions in flight; 0 for never.")] = 0
    predict: Annotated[
        bool, doc("Compute a batch with the weights predicted, from the momentum, for when its gradient is applied.")
    ] = False
    most_stages: ClassVar[int | None] = None
    flushes: ClassVar[bool] = False  # whether nothing is in flight between two batches

    @property
    def micro_batch_count(self) -> int:
        """The number of micro-batches in a batch."""
        return 1

    def batches_in_flight(self, to_end: int) -> int:
        """Batches that a stage must be able to hold, given the number of stages from it to the end."""
        return to_end

    def stage_windows(self, durations: StageDurations, least: float = 0.0) -> tuple[int, ...]:
        """The most micro-batches each stage has in flight; a batch cannot take less than `least` seconds."""
        return published_windows(durations.stages)

    def window_batches(self, window: int) -> int:
        """The most batches of which a stage with this window has something in flight at the same time."""
        return window

    def batch_period_s(self, durations: StageDurations, windows: Sequence[int]) -> float:
        """Seconds between two batches once the pipeline is full; the durations are those of a micro-batch."""
        return self.micro_batch_count * steady_period(durations, windows)

    def stage_schedule(self, window: int, start: int, end: int) -> StageSchedule:
        return OneFOneBStageSchedule(window, start, end)


class OneFOneBSchedule(PipelineSchedule, frozen=True, kw_only=True, tag="1f1b"):
    """Asynchronous: one forward and one backward pass in turn."""

    vertical_sync: bool = True
    fill: Annotated[
        Literal["published", "filling"],
        doc("Batches in flight: N − i on stage i, or as many as keep the slowest stage or link busy."),
    ] = "published"
    most: Annotated[Count, doc("With `filling`: most batches in flight; 0 for twice the number of stages.")] = 0
    speed: Annotated[
        float,
        msgspec.Meta(gt=0.0, le=1.0),
        doc("With `filling`: fraction of the full speed for which the fewest batches in flight are chosen."),
    ] = 1.0

    micro_batches: Annotated[
        int,
        msgspec.Meta(ge=1),
        doc(
            "Micro-batches per batch. The weights are updated once per batch, so gradients are older by fewer steps;"
            " batch norm sees a micro-batch."
        ),
    ] = 1

    def unused_keys(self) -> Mapping[str, str]:
        return {} if self.fill == "filling" else {"most": 'unless fill = "filling"'}

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def window_batches(self, window: int) -> int:
        return 1 + math.ceil((window - 1) / self.micro_batches)

    def stage_windows(self, durations: StageDurations, least: float = 0.0) -> tuple[int, ...]:
        if self.fill == "published":
            return published_windows(durations.stages)
        period = max(durations.min_period(), least / self.micro_batches) / self.speed
        return filling_windows(durations, period, (self.most or 2 * durations.stages) * self.micro_batches)

    def stage_schedule(self, window: int, start: int, end: int) -> StageSchedule:
        return OneFOneBStageSchedule(window, start, end, self.micro_batches)


class GPipeSchedule(PipelineSchedule, frozen=True, kw_only=True, tag="gpipe"):
    """Synchronous: micro-batches, and a flush after each batch."""

    micro_batches: Annotated[int, msgspec.Meta(ge=1), doc("Micro-batches per batch.")] = 4
    flushes: ClassVar[bool] = True

    def unused_keys(self) -> Mapping[str, str]:
        return dict.fromkeys(("vertical_sync", "predict"), "where all stages have the same version of the weights")

    @property
    def micro_batch_count(self) -> int:
        return self.micro_batches

    def batches_in_flight(self, to_end: int) -> int:
        return 1

    def batch_period_s(self, durations: StageDurations, windows: Sequence[int]) -> float:
        return simulate_pipeline(durations, batches=1, mode="gpipe", micro_batches=self.micro_batches).makespan

    def stage_schedule(self, window: int, start: int, end: int) -> StageSchedule:
        return GPipeStageSchedule(self.micro_batches, start, end)


class SingleDeviceSchedule(PipelineSchedule, frozen=True, kw_only=True, tag="single"):
    """The central device alone."""

    most_stages: ClassVar[int | None] = 1

    def unused_keys(self) -> Mapping[str, str]:
        return dict.fromkeys(("vertical_sync", "aggregate", "predict"), "on a single device")
