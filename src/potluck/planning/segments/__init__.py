"""How a transfer should be cut into segments so that it hides behind computation."""

from potluck.planning.segments.duplex_simulation import WorkerCosts, WorkerCuts
from potluck.planning.segments.iteration_forecast import DuplexForecast, barrier_iteration_s, forecast_duplex
from potluck.planning.segments.segment_costs import Direction
from potluck.planning.segments.segment_plan import SegmentPlan, simulate_makespan
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
    "simulate_makespan",
]
