"""One small job in either world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import potluck
from tests.time_limits import within

WORLDS = ["simulated", "lab"]
OWN = "tests.run.own_parts"
SMALL: dict[str, Any] = {
    "recipe": "fedavg",
    "task": f"{OWN}:build_task",
    "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}], "lease": "2 s"},
    "rounds": {"patience": "60 s"},
    "stop": {"rounds": 2},
}


def run_in(world: str, folder: Path, given: potluck.Task | None = None, **settings: Any) -> potluck.Result:
    """The result of the small job with some settings changed."""
    job = {**SMALL, **settings}
    if world == "simulated":
        return potluck.simulate(job, task=given, folder=folder, threads=0)
    with within(90):
        return potluck.lab(job, task=given, folder=folder)
