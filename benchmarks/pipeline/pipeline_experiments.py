"""The simulated experiments: speed, replication, adaptation to a change of speed, recovery from a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pipeline.pipeline_trial import (
    BATCH,
    PipelineTrial,
    chain_costs,
    reference_seconds,
    run_pipeline_trial,
)
from potluck.planning.partition import DeviceSpecs, LayerSpecs, plan_partition

__all__ = [
    "LAYOUTS",
    "LINKS",
    "RECOVERIES",
    "least_period_s",
    "measure_adaptation",
    "measure_recovery",
    "measure_replication",
    "measure_slow_link",
    "measure_speed",
]

LINKS = {"lan": "1 Gbit/s", "wifi": "50 Mbit/s"}
RECOVERIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "as published": ("ftpipehd-as-published", {}),
    "ours": ("ftpipehd", {}),
    "ResPipe": ("respipe", {}),
    "checkpoint restart": ("ftpipehd", {"replication": "none", "recovery": "restart"}),
}
_BATCHES = 120
_SPEED_BATCHES = 160  # the published method replans after batches 10 and 100
_CRASH_OFFSETS = (0.125, 0.375, 0.625, 0.875)  # fractions of the time from a batch to the next
_GIVEN_ORDER = {"partition": {"kind": "optimal", "order": "given"}}
# By what the planner knows at first. No one tells it how fast the devices are; "known costs" are the exception.
LAYOUTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PipeDream": ("pipedream", {}),
    "published": ("ftpipehd-as-published", {}),
    "MACs, order given": ("ftpipehd", {"layer_costs": "macs", **_GIVEN_ORDER}),
    "MACs, order searched": ("ftpipehd", {"layer_costs": "macs"}),
    "measured, order searched": ("ftpipehd", {}),
    "known costs, order searched": ("ftpipehd", {"layer_costs": "profiles"}),
}


def measure_speed(capacities: Sequence[float], batches: int = _SPEED_BATCHES) -> dict[str, Any]:
    """Seconds per batch of the layout that each method ends with, and how it found it."""
    result: dict[str, Any] = {"capacities": list(capacities)}
    for name, (recipe, pipeline) in LAYOUTS.items():
        trial = run_pipeline_trial(recipe, capacities, batches, pipeline=pipeline)
        plans = trial.partition_records()
        result[name] = {
            "period_s": trial.mean_period_s(batches - 30, batches - 10),
            "cuts": plans[-1]["cuts"],
            "order": plans[-1]["order"],
            "moves": len(plans) - 1,
            "found_after": plans[-1]["version"],
        }
    result["bound_s"] = least_period_s(capacities)
    return result


def least_period_s(capacities: Sequence[float], link_bytes_s: float = 125e6) -> float:
    """The shortest period of any layout of these devices that starts with the first one."""
    layers = LayerSpecs(
        times=[BATCH * seconds for seconds in reference_seconds().both],
        outputs=[BATCH * size for size in chain_costs().cut_bytes_per_sample],
    )
    devices = DeviceSpecs(capacities=capacities, bandwidth=link_bytes_s, duplex=True)
    return plan_partition(layers, devices, order="search", subset=True, pinned=0).period


def measure_replication(link: str, batches: int = _BATCHES) -> dict[str, Any]:
    """Seconds per batch with and without replication."""
    result = {}
    for name, kind in (("none", "none"), ("incremental", "incremental")):
        trial = run_pipeline_trial("ftpipehd", (1, 1, 1.5), batches, link=link, pipeline={"replication": kind})
        result[name] = trial.mean_period_s(batches // 3, batches - 10)
        result[f"{name} stride"] = trial.partition_records()[-1]["stride"]
    return result


def measure_adaptation(batches: int = 80, change: int = 30) -> dict[str, Any]:
    """One of three equal devices becomes four times slower; periods before and after it, and of the best layout."""
    undisturbed = run_pipeline_trial("ftpipehd", (1, 1, 1), change + 10, pipeline=_FULL_SPEED)
    at = {reached: when for when, reached in undisturbed.commit_times()}[change]
    slow = [{"kind": "slow", "device": "device1", "at": at, "factor": 0.25, "lasting": "365 d"}]
    adaptive = run_pipeline_trial("ftpipehd", (1, 1, 1), batches, faults=slow, pipeline=_FULL_SPEED)
    static_layout = {**_FULL_SPEED, "adaptation": _NEVER}
    static = run_pipeline_trial("ftpipehd", (1, 1, 1), batches, faults=slow, pipeline=static_layout)
    return {
        "before_s": undisturbed.mean_period_s(10, change),
        "adapted_s": adaptive.mean_period_s(change + 10, batches - 5),
        "static_s": static.mean_period_s(change + 10, batches - 5),
        "best_s": least_period_s((1, 4, 1)),
        "layouts": [plan["cuts"] for plan in adaptive.partition_records()],
        "series": _batch_periods(adaptive, change, batches),
    }


_NEVER = {"every": 0, "on_change": False, "join": False}
_FULL_SPEED = {"schedule": {"speed": 1.0}}  # layouts are compared, not how full the pipeline is kept
_LAN = {"up": "1 Gbit/s", "down": "1 Gbit/s"}


def measure_slow_link(batches: int = 80, change_s: float = 60.0) -> dict[str, Any]:
    """The second of three equal devices keeps a fiftieth of its bandwidth, which only the messages reveal."""
    quality = {"kind": "piecewise", "at": [0, change_s], "levels": [1.0, 0.02]}
    links = [_LAN, {**_LAN, "quality": quality}, _LAN]
    adaptive = run_pipeline_trial("ftpipehd", (1, 1, 1), batches, link=links)
    static = run_pipeline_trial("ftpipehd", (1, 1, 1), batches, link=links, pipeline={"adaptation": _NEVER})
    change = max(reached for when, reached in adaptive.commit_times() if when <= change_s)
    return {
        "before_s": adaptive.mean_period_s(10, change),
        "adapted_s": adaptive.mean_period_s(batches - 20, batches - 5),
        "nominal_s": static.mean_period_s(batches - 20, batches - 5),
        "batches": adaptive.partition_records()[-1]["version"] - change,
        "order": adaptive.partition_records()[-1]["order"],
    }


def _batch_periods(trial: PipelineTrial, change: int, batches: int) -> list[float]:
    at = {reached: when for when, reached in trial.commit_times()}
    return [at[batch + 1] - at[batch] for batch in range(change - 10, batches - 1)]


def measure_recovery(
    name: str, link: str, crash_batch: int = 150, offsets: Sequence[float] = _CRASH_OFFSETS
) -> dict[str, Any]:
    """The effect of a crash of either worker at several moments between two batches; means over all of them."""
    recipe, pipeline = RECOVERIES[name]
    undisturbed = run_pipeline_trial(recipe, (1, 1, 1.5), crash_batch + 2, link=link, pipeline=pipeline, checkpoint=100)
    at = {reached: when for when, reached in undisturbed.commit_times()}
    period = at[crash_batch + 1] - at[crash_batch]
    crashes = [
        _measure_crash(name, link, crash_batch, device, at[crash_batch] + offset * period)
        for device in ("device1", "device2")
        for offset in offsets
    ]
    means = {key: sum(crash[key] for crash in crashes) / len(crashes) for key in crashes[0]}
    return {**means, "deaths": crashes, "period_before_s": undisturbed.mean_period_s(crash_batch - 40, crash_batch)}


def _measure_crash(name: str, link: str, crash_batch: int, device: str, moment: float) -> dict[str, float]:
    recipe, pipeline = RECOVERIES[name]
    last = crash_batch + 18
    faults = [{"kind": "crash", "device": device, "at": moment}]
    trial = run_pipeline_trial(
        recipe, (1, 1, 1.5), last + 2, link=link, pipeline=pipeline, faults=faults, checkpoint=100
    )
    period = trial.mean_period_s(crash_batch + 8, last)
    return {
        "seconds": trial.next_commit_after(moment),
        "flows_s": trial.flow_resumes_after(moment),
        "new_layout_s": trial.progress_after(moment),
        "cost_s": trial.crash_cost_s(moment, last, period),
        "rolled_back": trial.rolled_back_batches(),
        "period_after_s": period,
    }
