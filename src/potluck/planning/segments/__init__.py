"""How a transfer should be cut into segments so that it hides behind computation."""

from potluck.planning.segments.costs import Direction
from potluck.planning.segments.forecast import DuplexForecast, duplex, iteration
from potluck.planning.segments.planner import STRATEGIES, Strategy, plan
from potluck.planning.segments.rehearsal import Cuts, Worker
from potluck.planning.segments.schedule import Plan, simulate

__all__ = [
    "STRATEGIES",
    "Cuts",
    "Direction",
    "DuplexForecast",
    "Plan",
    "Strategy",
    "Worker",
    "duplex",
    "iteration",
    "plan",
    "simulate",
]
