"""Figures of the task benchmark: each method beside the central loop, bytes, step time and what adapters send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.benchmark import Results
from benchmarks.benchmark_figures import Figure, Goal, PublishedValue, bar_series, figure_of_repeats
from benchmarks.tasks.task_workload import CENTRAL, WORKLOADS, TaskWorkload
from potluck.report.svg_chart import Chart

__all__ = ["build_charts", "compute_figures"]

_NANOGPT = PublishedValue(1.88, "nanoGPT's README: validation loss of the CPU configuration after 2,000 steps")
_STEP_GOAL = Goal("≤", 1.1)
_LORA_GOAL = Goal("≤", 1.05)
_METRIC_NAMES = {"loss": "loss", "accuracy": "accuracy", "mean-iou": "mean IoU"}


def compute_figures(results: Results) -> list[Figure]:
    figures: list[Figure] = []
    for name, workload in WORKLOADS.items():
        figures += _metric_figures(name, workload, results)
        figures += _step_figures(name, workload, results)
    return [*figures, *_adapter_figures(results)]


def _metric_figures(name: str, workload: TaskWorkload, results: Results) -> Iterator[Figure]:
    published, goal = (_NANOGPT, Goal("≤", _NANOGPT.value)) if name == "gpt" else (None, None)
    factor, unit = _scale(workload)
    values = [factor * result["metric"] for result in _runs(results, name, CENTRAL)]
    title = f"{workload.title}, {_METRIC_NAMES[workload.metric]}"
    yield figure_of_repeats(
        f"{title}: central", unit, values, published=published, goal=goal, executed="measured", tuned_alike=None
    )
    best = results[f"{name}/described"].get("best")
    if best is not None:
        yield Figure(name="  best possible", unit=unit, measured=factor * best, executed="counted")
    for method in workload.methods:
        yield from _method_figures(method, _runs(results, name, method), factor, unit)


def _method_figures(method: str, runs: Sequence[Mapping[str, Any]], factor: float, unit: str) -> Iterator[Figure]:
    refused = next((run["refused"] for run in runs if "refused" in run), None)
    if refused is not None:
        yield Figure(name=f"  {method}: refused, {refused}", unit="updates", measured=0.0, executed="simulated")
        return
    yield figure_of_repeats(f"  {method}", unit, [factor * run["metric"] for run in runs], executed="simulated")
    if runs[0]["bytes"]:
        yield figure_of_repeats(
            f"  {method}: bytes moved", "MB", [run["bytes"] / 1e6 for run in runs], executed="simulated"
        )


def _step_figures(name: str, workload: TaskWorkload, results: Results) -> Iterator[Figure]:
    """By steps in a round; the goal is for the longer rounds, in which a device works as a plain loop does."""
    counts = sorted({int(key.split("/")[1].split("-")[1]) for key in results if key.startswith(f"{name}/step-")})
    for steps in reversed(counts):
        timings = [result for key, result in results.items() if key.startswith(f"{name}/step-{steps}/")]
        ratios = [timing["potluck_ms"] / timing["plain_ms"] for timing in timings]
        rounds = f"{steps} steps" if steps > 1 else "one step"
        goal = _STEP_GOAL if steps == counts[-1] else None
        title = f"{workload.title}: step time of one device over a plain loop, {rounds} in a round"
        yield figure_of_repeats(title, "x", ratios, goal=goal, executed="measured")


def _adapter_figures(results: Results) -> Iterator[Figure]:
    """Bytes of an update, pulled and pushed, over twice the adapters' size."""
    adapters = results["lora/described"]["trained_bytes"]
    note = f"adapters: {adapters / 1e3:,.1f} kB"
    ratios = [run["bytes"] / (2 * adapters * run["updates"]) for run in _runs(results, "lora", "fedavg")]
    name = f"{WORKLOADS['lora'].title}: bytes of an update over the adapters' size, fedavg"
    yield figure_of_repeats(name, "x", ratios, goal=_LORA_GOAL, note=note, executed="simulated")


def build_charts(results: Results) -> list[Chart]:
    return [_metric_chart(name, workload, results) for name, workload in WORKLOADS.items()]


def _metric_chart(name: str, workload: TaskWorkload, results: Results) -> Chart:
    """The mean of the seeds of every method that is not refused."""
    factor, unit = _scale(workload)
    runs = {method: _runs(results, name, method) for method in (CENTRAL, *workload.methods)}
    figures = {
        method: figure_of_repeats(method, unit, [factor * run["metric"] for run in seeds], executed="simulated")
        for method, seeds in runs.items()
        if not any("refused" in run for run in seeds)
    }
    best = results[f"{name}/described"].get("best")
    return Chart(
        title=workload.title,
        y_label=f"{_METRIC_NAMES[workload.metric]}, {unit}",
        groups=list(figures),
        series=[bar_series("mean of the seeds, 95 % interval", list(figures.values()))],
        marks=[] if best is None else [("best possible", factor * best)],
    )


def _runs(results: Results, name: str, method: str) -> list[Mapping[str, Any]]:
    return [result for key, result in results.items() if key.startswith(f"{name}/{method}/")]


def _scale(workload: TaskWorkload) -> tuple[float, str]:
    """What the metric is multiplied by, and its unit."""
    return (1.0, "nats") if workload.metric == "loss" else (100.0, "%")
