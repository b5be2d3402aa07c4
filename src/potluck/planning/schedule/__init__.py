"""Pipeline schedules: when each stage runs which task, as rules and pure generators, and how long a schedule takes."""

from potluck.planning.schedule.in_flight_windows import (
    StageDurations,
    filling_windows,
    published_windows,
    steady_period,
)
from potluck.planning.schedule.pipeline_schedules import StageTask, gpipe_schedule, one_f_one_b_schedule
from potluck.planning.schedule.pipeline_simulation import PipelineTimeline, TimedTask, simulate_pipeline
from potluck.planning.schedule.stage_rules import StageProgress, backward_ready, due_task, forward_ready

__all__ = [
    "PipelineTimeline",
    "StageDurations",
    "StageProgress",
    "StageTask",
    "TimedTask",
    "backward_ready",
    "due_task",
    "filling_windows",
    "forward_ready",
    "gpipe_schedule",
    "one_f_one_b_schedule",
    "published_windows",
    "simulate_pipeline",
    "steady_period",
]
