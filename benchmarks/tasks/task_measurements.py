"""What is measured: how well a method trains a workload, and the processor time of a step beside a plain loop's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import potluck
from benchmarks.tasks.plain_training import PlainSettings, evaluate_plain, train_plain
from benchmarks.tasks.task_workload import (
    CENTRAL,
    TUNED,
    WORKLOADS,
    TaskWorkload,
    build_workload_task,
    method_job,
    single_device_job,
)
from potluck.data import info, parse
from potluck.data.generated_text import GeneratedLanguageSource, GeneratedTopicsSource
from potluck.errors import UserError
from potluck.task import Task

__all__ = ["describe_workload", "measure_step_time", "measure_training", "tune_rates"]

_TUNING_FACTORS = (1 / 3, 1.0, 3.0, 10.0)
_TUNING_SEED = 1000
_WARM_UP_ROUNDS = 1

workload_task = lru_cache(maxsize=1)(build_workload_task)


def measure_training(
    name: str, method: str, steps: int, seed: int, data: Path | None, rate: float | None = None
) -> dict[str, Any]:
    """The workload's metric after that many central steps' samples, and the bytes that the devices moved.

    A method that refuses the model says why under `refused`.
    """
    workload, task = WORKLOADS[name], workload_task(name, data)
    if method in (CENTRAL, TUNED):
        settings = workload.plain_settings(steps)._replace(lr=workload.rates[method] if rate is None else rate)
        scores = evaluate_plain(task, train_plain(task, settings, seed))
        result: dict[str, Any] = {"bytes": 0, "samples": steps * workload.batch}
    else:
        try:
            run = potluck.simulate(method_job(workload, method, steps, seed, rate), task=task, threads=0)
        except UserError as error:
            return {"refused": str(error)}
        assert run.status == "done", run.reason
        summary = run.summary
        scores = {"loss": summary["loss"], **summary.get("metrics", {})}
        result = {key: summary[key] for key in ("bytes", "samples", "updates", "time_s")}
    return {**result, "loss": scores["loss"], "metric": scores[workload.metric]}


def describe_workload(name: str, data: Path | None) -> dict[str, float]:
    """The bytes of what is trained (all of the model, or its adapters), and the best metric where it is known."""
    module = workload_task(name, data).build_module(0)
    described = {"trained_bytes": float(sum(value.nbytes for value in module.parameters() if value.requires_grad))}
    best = _best_metric(WORKLOADS[name])
    return described if best is None else {**described, "best": best}


def _best_metric(workload: TaskWorkload) -> float | None:
    if "data" not in workload.task:
        return None
    source = parse(workload.task["data"])
    if isinstance(source, GeneratedLanguageSource):
        return source.ideal_loss()
    return info(source).accuracy_ceiling if isinstance(source, GeneratedTopicsSource) else None


# --- time of a step --------------------------------------------------------------------------------------------------


def measure_step_time(
    name: str, steps: int, rounds: int, repeat: int, data: Path | None, seed: int = 0
) -> dict[str, float]:
    """CPU milliseconds of a step in a plain loop and on a single device, `steps` to a round; the order alternates."""
    workload, task = WORKLOADS[name], workload_task(name, data)
    sides: Mapping[str, Callable[[TaskWorkload, Task, int, int, int], float]] = {
        "plain_ms": _time_plain_step,
        "potluck_ms": _time_device_step,
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            side: sides[side](workload, task, steps, rounds, seed) for side in sorted(sides, reverse=bool(repeat % 2))
        }
    finally:
        torch.set_num_threads(threads)


def _time_plain_step(workload: TaskWorkload, task: Task, steps: int, rounds: int, seed: int) -> float:
    marks: list[float] = []
    total = steps * (rounds + _WARM_UP_ROUNDS)
    settings: PlainSettings = workload.plain_settings(total)._replace(warm_up=0, floor=1.0)
    train_plain(task, settings, seed, on_step=lambda step: marks.append(time.process_time()))
    return 1e3 * (marks[-1] - marks[steps * _WARM_UP_ROUNDS - 1]) / (steps * rounds)


def _time_device_step(workload: TaskWorkload, task: Task, steps: int, rounds: int, seed: int) -> float:
    """The last round, which is followed by an evaluation, is left out."""
    marks: list[float] = []
    job = single_device_job(workload, steps, rounds + _WARM_UP_ROUNDS + 1, seed)
    run = potluck.simulate(job, task=task, threads=0, watch=lambda store, now: marks.append(time.process_time()))
    assert run.status == "done", run.reason
    return 1e3 * (marks[-2] - marks[_WARM_UP_ROUNDS - 1]) / (steps * rounds)


# --- learning rates --------------------------------------------------------------------------------------------------


def tune_rates(name: str, steps: int, data: Path | None) -> dict[str, dict[float, float]]:
    """The metric of each method with four learning rates; `rates` of the workloads were chosen by it."""
    workload = WORKLOADS[name]
    rates = [factor * workload.common_rate for factor in _TUNING_FACTORS]
    return {
        method: {
            rate: measure_training(name, method, steps, _TUNING_SEED, data, rate).get("metric", float("nan"))
            for rate in rates
        }
        for method in (CENTRAL, *workload.methods)
    }
