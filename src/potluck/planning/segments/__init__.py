"""Cuts transfers into segments so that they overlap with computation."""

from potluck.planning.segments.duplex_simulation import WorkerCosts, WorkerCuts
from potluck.planning.segments.iteration_forecast import DuplexForecast, barrier_iteration_s, forecast_duplex
from potluck.planning.segments.segment_costs import Direction
from potluck.planning.segments.segment_plan import SegmentPlan
from potluck.planning.segments.segment_planner import STRATEGIES, Strategy, plan_segments

__all__ = [
    "STRATEGIES",
    "Direction",
    "DuplexForecast",
    "SegmentPlan",
    "Strategy",
    "WorkerCosts",
    "WorkerCuts",
    "barrier_iteration_s",
    "forecast_duplex",
    "plan_segments",
]
