"""The experiments: how fast, how near to the bound, how quick to follow a change, how quick after a death."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from potluck.bench.pipeline.trial import Trial, run
from potluck.bench.pipeline.workload import costs
from potluck.loops.pipeline.costs import ChainCosts
from potluck.planning.partition import Devices, Layers, partition

__all__ = ["LINKS", "RECOVERIES", "adaptation", "bound", "recovery", "replication", "speed"]

LINKS = {"lan": "1 Gbit/s", "wifi": "50 Mbit/s"}
RECOVERIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "as published": ("ftpipehd-as-published", {}),
    "ours": ("ftpipehd", {}),
    "ResPipe": ("respipe", {}),
    "checkpoint restart": ("ftpipehd", {"replication": "none", "recovery": "restart"}),
}
_BATCHES = 120
_MOMENTS = (0.125, 0.375, 0.625, 0.875)  # of the way from a batch to the next
_LAYOUTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PipeDream": ("pipedream", {}),
    "published": ("ftpipehd-as-published", {}),
    "ours, order given": ("ftpipehd", {"partition": {"kind": "optimal", "order": "given"}}),
    "ours, order searched": ("ftpipehd", {}),
}


def speed(capacities: Sequence[float], batches: int = _BATCHES) -> dict[str, Any]:
    """Seconds per batch of each layout in the simulated world, once the pipeline is full."""
    found: dict[str, Any] = {"capacities": list(capacities)}
    for name, (recipe, pipeline) in _LAYOUTS.items():
        trial = run(recipe, capacities, batches, pipeline=pipeline)
        plan = trial.partitions()[-1]
        found[name] = {
            "period_s": trial.period(batches // 3, batches - 10),
            "cuts": plan["cuts"],
            "order": plan["order"],
        }
    found["bound_s"] = bound(capacities)
    return found


def bound(capacities: Sequence[float], link_bytes_s: float = 125e6) -> float:
    """The least period of any layout of these devices with the first one in front."""
    chain = costs()
    devices = Devices(capacities=capacities, bandwidth=link_bytes_s, duplex=True)
    return partition(_layers(chain), devices, order="search", subset=True, pinned=0).period


def _layers(chain: ChainCosts) -> Layers:
    from potluck.bench.pipeline.workload import BATCH

    times = [chain.both(layer, layer, BATCH) for layer in range(chain.layers)]
    return Layers(times=times, outputs=[size * BATCH for size in chain.crossing_bytes])


def replication(link: str, batches: int = _BATCHES) -> dict[str, Any]:
    """What copies cost: seconds per batch with and without them."""
    found = {}
    for name, kind in (("none", "none"), ("incremental", "incremental")):
        trial = run("ftpipehd", (1, 1, 1.5), batches, link=link, pipeline={"replication": kind})
        found[name] = trial.period(batches // 3, batches - 10)
        found[f"{name} stride"] = trial.partitions()[-1]["stride"]
    return found


def adaptation(batches: int = 80, change: int = 30) -> dict[str, Any]:
    """One of three equal devices becomes four times slower for good; periods before, after, and of the best layout."""
    calm = run("ftpipehd", (1, 1, 1), change + 10)
    at = {reached: when for when, reached in calm.commits()}[change]
    slow = [{"kind": "slow", "device": "device1", "at": at, "factor": 0.25, "lasting": "365 d"}]
    moving = run("ftpipehd", (1, 1, 1), batches, faults=slow)
    still = run("ftpipehd", (1, 1, 1), batches, faults=slow, pipeline={"adaptation": _NEVER})
    return {
        "before_s": calm.period(10, change),
        "adapted_s": moving.period(change + 10, batches - 5),
        "static_s": still.period(change + 10, batches - 5),
        "best_s": bound((1, 4, 1)),
        "layouts": [plan["cuts"] for plan in moving.partitions()],
        "series": _series(moving, change, batches),
    }


_NEVER = {"every": 0, "on_change": False, "join": False}


def _series(trial: Trial, change: int, batches: int) -> list[float]:
    at = {reached: when for when, reached in trial.commits()}
    return [at[batch + 1] - at[batch] for batch in range(change - 10, batches - 1)]


def recovery(name: str, link: str, crash_batch: int = 150, moments: Sequence[float] = _MOMENTS) -> dict[str, Any]:
    """What the death of either worker means, at several moments between two batches; means over all of them."""
    recipe, pipeline = RECOVERIES[name]
    calm = run(recipe, (1, 1, 1.5), crash_batch + 2, link=link, pipeline=pipeline, checkpoint=100)
    at = {reached: when for when, reached in calm.commits()}
    period = at[crash_batch + 1] - at[crash_batch]
    found = [
        _death(name, link, crash_batch, device, at[crash_batch] + share * period)
        for device in ("device1", "device2")
        for share in moments
    ]
    means = {key: sum(death[key] for death in found) / len(found) for key in found[0]}
    return {**means, "deaths": found, "period_before_s": calm.period(crash_batch - 40, crash_batch)}


def _death(name: str, link: str, crash_batch: int, device: str, moment: float) -> dict[str, float]:
    recipe, pipeline = RECOVERIES[name]
    last = crash_batch + 18
    faults = [{"kind": "crash", "device": device, "at": moment}]
    trial = run(recipe, (1, 1, 1.5), last + 2, link=link, pipeline=pipeline, faults=faults, checkpoint=100)
    period = trial.period(crash_batch + 8, last)
    return {
        "seconds": trial.next_after(moment),
        "flows_s": trial.flows_after(moment),
        "new_layout_s": trial.further_after(moment),
        "cost_s": trial.cost_of(moment, last, period),
        "rolled_back": trial.rolled_back(),
        "period_after_s": period,
    }
