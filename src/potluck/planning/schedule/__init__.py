"""When each stage of a pipeline does what: the rules, the schedules as pure generators, and what they cost in time."""

from potluck.planning.schedule.gate import Progress, backward_ready, due, forward_ready
from potluck.planning.schedule.orders import Task, gpipe, one_f_one_b
from potluck.planning.schedule.simulate import Bar, Timeline, simulate_pipeline
from potluck.planning.schedule.table import table
from potluck.planning.schedule.versions import version_used, versions_held
from potluck.planning.schedule.windows import Durations, filling_windows, published_windows, steady_period

__all__ = [
    "Bar",
    "Durations",
    "Progress",
    "Task",
    "Timeline",
    "backward_ready",
    "due",
    "filling_windows",
    "forward_ready",
    "gpipe",
    "one_f_one_b",
    "published_windows",
    "simulate_pipeline",
    "steady_period",
    "table",
    "version_used",
    "versions_held",
]
