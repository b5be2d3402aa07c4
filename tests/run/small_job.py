"""One small job in either world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import potluck
from tests.time_limits import within

WORLDS = ["simulated", "lab"]
USER_PARTS = "tests.run.user_parts"
SMALL: dict[str, Any] = {
    "recipe": "fedavg",
    "task": f"{USER_PARTS}:build_task",
    "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}], "lease": "2 s"},
    "rounds": {"patience": "60 s"},
    "stop": {"rounds": 2},
}


def run_small_job(world: str, folder: Path, task_object: potluck.Task | None = None, **settings: Any) -> potluck.Result:
    """Run the small job, with some settings changed, in the given world."""
    job = {**SMALL, **settings}
    if world == "simulated":
        return potluck.simulate(job, task=task_object, folder=folder, threads=0)
    with within(90):
        return potluck.lab(job, task=task_object, folder=folder)
