"""Potluck trains one PyTorch model on whatever devices turn up.

    import potluck
    result = potluck.simulate("job.toml")

The names below are loaded when they are first used, so that `import potluck` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from potluck.errors import PotluckError, UserError
    from potluck.job import Job, make
    from potluck.run import Result, resume, simulate
    from potluck.task import Task

__all__ = ["Job", "PotluckError", "Result", "Task", "UserError", "__version__", "make", "resume", "simulate"]

__version__ = "0.1.0"

_HOMES = {
    "Job": "potluck.job",
    "PotluckError": "potluck.errors",
    "Result": "potluck.run",
    "Task": "potluck.task",
    "UserError": "potluck.errors",
    "make": "potluck.job",
    "resume": "potluck.run",
    "simulate": "potluck.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'potluck' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
