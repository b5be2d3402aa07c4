"""Potluck trains one PyTorch model on whatever devices turn up.

    import potluck
    result = potluck.simulate("job.toml")

A job is run by `simulate`, by `lab` (live on this machine) or by `serve` with `join` on each device; `plan` predicts
it. The names below are loaded when they are first used, so that `import potluck` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.errors import PotluckError, UserError
    from potluck.job import Job, make
    from potluck.model.metrics import Metric
    from potluck.run import Result, resume, simulate
    from potluck.run.job_plan import JobPlan
    from potluck.run.joined_device import JoinOptions, join
    from potluck.run.lab import lab
    from potluck.run.live_options import LabOptions, ResumeOptions, ServeOptions
    from potluck.run.live_run import LiveObserver, serve
    from potluck.run.prepared_job import plan
    from potluck.task import Task

__all__ = [
    "Job",
    "JobPlan",
    "JoinOptions",
    "LabOptions",
    "LiveObserver",
    "Metric",
    "PotluckError",
    "Result",
    "ResumeOptions",
    "ServeOptions",
    "Task",
    "UserError",
    "__version__",
    "join",
    "lab",
    "make",
    "plan",
    "resume",
    "serve",
    "simulate",
]

__version__ = "0.1.0"

_HOMES = {
    "Job": "potluck.job",
    "JobPlan": "potluck.run.job_plan",
    "JoinOptions": "potluck.run.joined_device",
    "LabOptions": "potluck.run.live_options",
    "LiveObserver": "potluck.run.live_run",
    "Metric": "potluck.model.metrics",
    "PotluckError": "potluck.errors",
    "Result": "potluck.run",
    "ResumeOptions": "potluck.run.live_options",
    "ServeOptions": "potluck.run.live_options",
    "Task": "potluck.task",
    "UserError": "potluck.errors",
    "join": "potluck.run.joined_device",
    "lab": "potluck.run.lab",
    "make": "potluck.job",
    "plan": "potluck.run.prepared_job",
    "resume": "potluck.run",
    "serve": "potluck.run.live_run",
    "simulate": "potluck.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
