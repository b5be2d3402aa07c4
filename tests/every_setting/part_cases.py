"""Cases for parts that stand in several places of a job: traces, optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.every_setting.setting_case import SettingCase, cases
from tests.every_setting.small_jobs import Tables

__all__ = ["optimizer_cases", "schedule_cases", "trace_cases"]

JobWith = Callable[[Tables], Tables]

_FOLDER = Path(__file__).parent
_STEPS: Tables = {"kind": "piecewise", "at": ["0 s", "300 ms"], "levels": [1.0, 0.3], "repeat": "700 ms"}
_WALK: Tables = {"kind": "random-walk", "low": 0.2, "high": 1.0, "step": 0.4, "every": "150 ms"}


def trace_cases(job: JobWith, path: str) -> list[SettingCase]:
    """Every key of every kind of trace."""
    file = {"kind": "csv", "file": str(_FOLDER / "levels.csv")}
    return [
        *cases(job({"kind": "constant", "level": 0.8}), path, level=0.4),
        *cases(job(_STEPS), path, at=["0 s", "100 ms"], levels=[1.0, 0.6], repeat="500 ms"),
        *cases(job(_WALK), path, low=0.05, high=2.0, step=0.8, every="50 ms"),
        *cases(job(file), path, file=str(_FOLDER / "other_levels.csv"), rows=[[0.0, 1.0], [0.4, 0.1]]),
    ]


def optimizer_cases(job: JobWith, path: str) -> list[SettingCase]:
    """Every key of every optimizer of the coordinator or of a pipeline."""
    moments = {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.1}
    named = {"kind": "optimizer", "name": "torch.optim.RMSprop", "options": {"weight_decay": 0.1}}
    return [
        *cases(job({"kind": "sgd", "lr": 0.2, "momentum": 0.9}), path,
               lr=0.5, momentum=0.5, weight_decay=0.1, nesterov=True),
        *cases(job({"kind": "adam"}), path, **moments, weight_decay=0.1),
        *cases(job({"kind": "adamw"}), path, **moments, weight_decay=0.5),
        *cases(job(named), path, lr=0.1, name="torch.optim.Adagrad", options={}),
    ]  # fmt: skip


def schedule_cases(job: JobWith, path: str) -> list[SettingCase]:
    """Every key of every learning-rate schedule; the job evaluates after each of about ten rounds."""
    plateau = {"kind": "plateau", "factor": 0.5, "patience": 0, "threshold": 0.0}
    return [
        *cases(job({"kind": "constant"}), path, warmup=3),
        *cases(job({"kind": "steps", "at": [1, 2]}), path, warmup=3, at=[2], by=0.5),
        *cases(job({"kind": "cosine", "rounds": 4}), path, warmup=3, rounds=2, floor=0.5),
        *cases(job(plateau), path,
               warmup=3, metric="accuracy", factor=0.1, patience=2, threshold=0.5, cooldown=2, floor=0.9),
    ]  # fmt: skip
