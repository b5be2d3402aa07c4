"""Cuts transfers into segments so that they overlap with computation."""

from potluck.planning.segments.duplex_planner import DuplexPlan, plan_duplex_turn
from potluck.planning.segments.duplex_schedule import DuplexSchedule, TransferTiming, WorkerCosts, WorkerCuts
from potluck.planning.segments.iteration_forecast import DuplexForecast, barrier_iteration_s, forecast_duplex
from potluck.planning.segments.segment_costs import Direction
from potluck.planning.segments.segment_plan import RequestWindow, SegmentPlan
from potluck.planning.segments.segment_planner import STRATEGIES, Strategy, plan_segments, plan_windowed_pull

__all__ = [
    "STRATEGIES",
    "Direction",
    "DuplexForecast",
    "DuplexPlan",
    "DuplexSchedule",
    "RequestWindow",
    "SegmentPlan",
    "Strategy",
    "TransferTiming",
    "WorkerCosts",
    "WorkerCuts",
    "barrier_iteration_s",
    "forecast_duplex",
    "plan_duplex_turn",
    "plan_segments",
    "plan_windowed_pull",
]
