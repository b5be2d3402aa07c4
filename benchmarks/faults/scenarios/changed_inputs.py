"""A run is resumed with another model or with other data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck.errors import PotluckWarning, RunError
from potluck.run import resume, simulate
from potluck.task import Task

__all__ = ["SCENARIO"]

_X = torch.linspace(-1, 1, 400).reshape(100, 4)
_Y = (_X[:, 0] > 0).long()
_FLEET = {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]}
_JOBS: dict[str, dict[str, Any]] = {
    "rounds": {"recipe": "fedavg", "task": "own", "fleet": _FLEET, "stop": {"rounds": 2}},
    "pipeline": {"recipe": "ftpipehd", "task": "own", "fleet": _FLEET, "stop": {"rounds": 2}, "pipeline": {"batch": 8}},
}


class LazyRows(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are read when they are needed."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._x[index], self._y[index]


def _network(*, width: int = 8, activation: type[nn.Module] = nn.ReLU, depth: int = 1) -> nn.Module:
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth - 1) for layer in (nn.Linear(width, width), activation())]
    return nn.Sequential(nn.Linear(4, width), activation(), *hidden, nn.Linear(width, 2))


_CHANGES: dict[str, Callable[[], Task]] = {
    "wider": lambda: Task(_network(width=9), (_X, _Y)),
    "deeper": lambda: Task(_network(depth=2), (_X, _Y)),
    "another activation": lambda: Task(_network(activation=nn.Tanh), (_X, _Y)),
    "another dtype": lambda: Task(_network().double(), (_X, _Y)),
    "fewer samples": lambda: Task(_network(), (_X[:90], _Y[:90])),
    "scaled samples": lambda: Task(_network(), (1.01 * _X, _Y)),
    "one other value": lambda: Task(_network(), (torch.cat([_X[:50], _X[50:51] + 1e-6, _X[51:]]), _Y)),
    "other labels": lambda: Task(_network(), (_X, 1 - _Y)),
    "other lazy samples": lambda: Task(_network(), LazyRows(1.01 * _X, _Y)),
}


def _is_refused(run: Path, task: Task, part: str) -> bool:
    try:
        resume(run, task=task, threads=0)
    except RunError as error:
        return part in str(error)
    return False


def measure(context: ScenarioContext) -> list[Figure]:
    accepted = wrongly_refused = 0
    trials = [
        (f"{name} {seed}", {**job, "seed": seed})
        for seed in range(context.size["seeds"])
        for name, job in _JOBS.items()
    ]
    for name, job in trials:
        run = context.folder / name
        simulate(job, task=Task(_network(), (_X, _Y)), folder=run, threads=0)
        for change, build in _CHANGES.items():
            refused = _is_refused(run, build(), ": ")
            accepted += not refused
            if not refused:
                context.show(f"{name}: resumed with {change}")
        with warnings.catch_warnings():
            warnings.simplefilter("error", PotluckWarning)
            wrongly_refused += _is_refused(run, Task(_network(), (_X.clone(), _Y.clone())), "")
    return [
        Figure(
            name="resumed with another model or other data",
            unit="",
            measured=accepted,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
        Figure(
            name="refused with the same", unit="", measured=wrongly_refused, goal=Goal("≤", 0), executed="simulated"
        ),
        Figure(name="changes tried", unit="", measured=len(trials) * len(_CHANGES), executed="simulated"),
    ]


SCENARIO = FaultScenario(
    title="another model, other data",
    clause="Resuming with another model or other data is refused with what differs.",
    executed="simulated",
    measure=measure,
    quick={"seeds": 1},
    full={"seeds": 12},
    quick_s=5.0,
    full_s=30.0,
)
