"""Arguments of a wrong type are refused in one line, by every public function that takes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.errors import UserError
from tests.run.small_job import SMALL

WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "no such file": (lambda: potluck.simulate("nonexistent.toml"), "cannot read nonexistent.toml"),
    "a number for a job": (lambda: potluck.simulate(3), "job: expected a job's file"),  # type: ignore[arg-type]
    "nothing for a job": (lambda: potluck.plan(None), "job: expected a job's file"),  # type: ignore[arg-type]
    "a number for a task": (lambda: potluck.simulate(SMALL, task=3), "task: expected a potluck.Task"),  # type: ignore[arg-type]
    "a model for a task": (
        lambda: potluck.plan(SMALL, task=torch.nn.Linear(2, 2)),  # type: ignore[arg-type]
        "task: expected a potluck.Task",
    ),
    "a number for the data": (lambda: potluck.simulate(SMALL, data=3), "data: expected the path"),  # type: ignore[arg-type]
    "a number for the folder": (lambda: potluck.simulate(SMALL, folder=3), "folder: expected the path"),  # type: ignore[arg-type]
    "a lab's task": (lambda: potluck.lab(SMALL, folder="x", task=3), "task: expected"),  # type: ignore[arg-type]
    "a lab's folder": (lambda: potluck.lab(SMALL, folder=3), "folder: expected"),  # type: ignore[arg-type]
    "a server's folder": (lambda: potluck.serve(SMALL, folder=3), "folder: expected"),  # type: ignore[arg-type]
    "a server's job": (lambda: potluck.serve(3, folder="x"), "job: expected"),  # type: ignore[arg-type]
    "a device's task": (lambda: potluck.join("tcp/127.0.0.1:1", "t", task=3), "task: expected"),  # type: ignore[arg-type]
    "a number for a task's name": (
        lambda: potluck.Task(torch.nn.Linear(2, 2), (torch.zeros(2, 2), torch.zeros(2)), name=3),  # type: ignore[arg-type]
        "`name` is a int",
    ),
    "negative threads": (lambda: potluck.simulate(SMALL, threads=-1), "threads: .*got -1"),
    "threads that are text": (lambda: potluck.simulate(SMALL, threads="2"), "threads: "),  # type: ignore[arg-type]
    "a device's negative threads": (lambda: potluck.JoinOptions(threads=-1), "threads: .*got -1"),
    "a run to resume": (lambda: potluck.resume(3), "folder: expected the path"),  # type: ignore[arg-type]
    "no run to resume": (lambda: potluck.resume("nowhere"), "nowhere is not the folder of a run"),
    "tables that are none": (lambda: potluck.make(3), "expected"),  # type: ignore[arg-type]
    "a bandwidth without a unit": (
        lambda: potluck.make(
            {**SMALL, "fleet": {"devices": [{"name": "d", "flops": "1 GFLOP/s", "link": {"up": 20}}]}},
        ),
        r"fleet\.devices\[0\]\.link\.up: 20 has no unit; write '20 Mbit/s'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function, pattern = WRONG[name]
    with pytest.raises(UserError, match=pattern) as error:
        function()
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
