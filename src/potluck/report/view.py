"""All that a page shows of a run, as plain data: what is not in the journal is not in here either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from potluck.report.curves import Energy, curves, signals
from potluck.report.devices import COORDINATOR, described, nodes
from potluck.report.folder import RunFolder
from potluck.report.packing import pack
from potluck.report.story import Event, Story

__all__ = ["positions", "title_of", "view"]

_MOST_EVENTS = 3000
_QUIET = {"late"}  # counted for each device; too many to list beside what went wrong


def view(story: Story, folder: RunFolder, since: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A run as the page's scripts take it; with `since` (see `positions`) only the spans after that."""
    names = nodes(story, folder)
    energy = Energy(story, folder)
    rows = [COORDINATOR, *names]
    return {
        **_head(story, folder),
        "figures": _figures(story, folder, energy),
        "curves": [] if folder.job().get("timing_only") else curves(story, energy, set(names)),
        "signals": signals(story, set(names)),
        "devices": described(story, folder, names),
        "events": _events(story.events, rows),
        "partitions": _partitions(story),
        "pareto": folder.pareto(),
        "details": story.details,
        "lanes": story.lanes,
        "spans": pack(story, rows, since),
    }


def positions(story: Story) -> dict[str, int]:
    """How many spans of each node there are by now."""
    return {node: len(track) for node, track in story.tracks.items()}


def _head(story: Story, folder: RunFolder) -> dict[str, Any]:
    summary, job = folder.summary(), folder.job()
    return {
        "id": folder.name,
        "title": summary.get("name") or title_of(job) or folder.name,
        "recipe": summary.get("recipe") or job.get("recipe", ""),
        "status": folder.status(),
        "reason": summary.get("reason", ""),
        "limit": summary.get("limit") or story.tally.limit(story.end),
        "world": folder.world(),
        "end": story.end,
        "stop": job.get("stop", {}),
        "job": folder.job_text(),
    }


def title_of(job: Mapping[str, Any]) -> str:
    task = job.get("task")
    if job.get("name") or not isinstance(task, dict):
        return str(job.get("name") or task or "")
    data = task.get("data", "")
    return f"{task.get('model', '')} on {data.get('kind', '') if isinstance(data, dict) else data}"


def _figures(story: Story, folder: RunFolder, energy: Energy) -> dict[str, Any]:
    fleet = folder.fleet()
    joules = energy.until(np.array([story.end]))
    received = sum(track.received for track in story.tracks.values())
    sent = sum(track.sent for track in story.tracks.values())
    return {
        "accuracy": _last(story, "test_accuracy"),
        "best": max(_values(story, "test_accuracy"), default=None),
        "loss": None if folder.job().get("timing_only") else _loss(story),
        "rounds": story.rounds,
        "time_s": story.end,
        "wall_s": folder.summary().get("wall_s"),
        "bytes": folder.summary().get("bytes", received + sent),
        "energy_j": float(joules[0]) if joules is not None else None,
        "samples": folder.summary().get("samples"),
        "devices": len(fleet.members) if fleet is not None else len(nodes(story, folder)),
        "lost": _counted(story, "lost"),
        "late": _counted(story, "late"),
    }


def _counted(story: Story, name: str) -> int:
    return sum(many for (_, event), many in story.counts.items() if event == name)


def _loss(story: Story) -> float | None:
    return _last(story, "test_loss") if _values(story, "test_loss") else _last(story, "loss")


def _values(story: Story, name: str) -> Sequence[float]:
    found = [series.values for (key, _), series in story.series.items() if key == name]
    return found[0] if found else ()


def _last(story: Story, name: str) -> float | None:
    values = _values(story, name)
    return values[-1] if values else None


def _events(events: Sequence[Event], rows: Sequence[str]) -> list[list[Any]]:
    """Time, row, name and words of what happened; where there is too much of it, every so many."""
    places = {name: row for row, name in enumerate(rows)}
    loud = [event for event in events if event.name not in _QUIET and event.node in places]
    step = max(1, -(-len(loud) // _MOST_EVENTS))
    return [[event.at, places[event.node], event.name, _words(event)] for event in loud[::step]]


def _words(event: Event) -> str:
    fields = event.fields
    if event.name == "link":
        return "cut off" if fields.get("value") == 0 else "connected again"
    if event.name == "partition" and fields.get("cuts") is not None and fields.get("order"):
        starts = [0, *fields["cuts"]]
        return ", ".join(f"{name} from layer {start}" for name, start in zip(fields["order"], starts, strict=False))
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name != "value")


def _partitions(story: Story) -> list[dict[str, Any]]:
    """Who held which layers from when on. How many layers there are is told by the records, or by the highest seen."""
    found = [event for event in story.events if event.name == "partition" and event.fields.get("cuts") is not None]
    seen = [detail["layers"][-1] + 1 for detail in story.details if isinstance(detail.get("layers"), tuple)]
    seen += [max(event.fields["cuts"], default=0) + 1 for event in found]
    layers = max((event.fields["layers"] for event in found if "layers" in event.fields), default=max(seen, default=1))
    return [{"at": event.at, **event.fields, "layers": layers} for event in found]
