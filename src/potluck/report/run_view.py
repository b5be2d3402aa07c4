"""All that a page shows of a run, as plain data: what is not in the journal is not in here either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from potluck.fleet import Device
from potluck.report.device_absence import Absence, device_absences
from potluck.report.run_curves import EnergyEstimate, device_signals, run_curves
from potluck.report.run_folder import RunFolder
from potluck.report.run_history import JournalEvent, RunHistory, SpanTrack
from potluck.report.span_packing import pack_spans
from potluck.report.time_breakdown import seconds_by_class

__all__ = ["MOST_ROWS", "build_run_view", "job_title", "span_positions"]

MOST_ROWS = 300  # devices that a page shows one by one
COORDINATOR = "coordinator"
_MOST_EVENTS = 3000
_QUIET = {"late"}  # counted for each device; too many to list beside what went wrong


def build_run_view(story: RunHistory, folder: RunFolder, since: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A run as the page's scripts take it; with `since` (see `positions`) only the spans after that."""
    names = shown_devices(story, folder)
    energy = EnergyEstimate(story, folder)
    rows = [COORDINATOR, *names]
    return {
        **_run_header(story, folder),
        "figures": _run_figures(story, folder, energy),
        "curves": [] if folder.load_job().get("timing_only") else run_curves(story, energy, set(names)),
        "signals": device_signals(story, set(names)),
        "devices": describe_devices(story, folder, names),
        "events": _listed_events(story.events, rows),
        "partitions": _layer_partitions(story),
        "pareto": folder.pareto_entries(),
        "details": story.details,
        "lanes": story.lanes,
        "spans": pack_spans(story, rows, since),
    }


def span_positions(story: RunHistory) -> dict[str, int]:
    """How many spans of each node there are by now."""
    return {node: len(track) for node, track in story.tracks.items()}


def _run_header(story: RunHistory, folder: RunFolder) -> dict[str, Any]:
    summary, job = folder.load_summary(), folder.load_job()
    return {
        "id": folder.name,
        "title": summary.get("name") or job_title(job) or folder.name,
        "recipe": summary.get("recipe") or job.get("recipe", ""),
        "status": folder.run_status(),
        "reason": summary.get("reason", ""),
        "limit": summary.get("limit") or story.tally.bottleneck_sentence(story.end),
        "world": folder.world_kind(),
        "end": story.end,
        "stop": job.get("stop", {}),
        "job": folder.job_text(),
    }


def job_title(job: Mapping[str, Any]) -> str:
    task = job.get("task")
    if job.get("name") or not isinstance(task, dict):
        return str(job.get("name") or task or "")
    data = task.get("data", "")
    return f"{task.get('model', '')} on {data.get('kind', '') if isinstance(data, dict) else data}"


def _run_figures(story: RunHistory, folder: RunFolder, energy: EnergyEstimate) -> dict[str, Any]:
    fleet = folder.load_fleet()
    joules = energy.joules_until(np.array([story.end]))
    received = sum(track.received for track in story.tracks.values())
    sent = sum(track.sent for track in story.tracks.values())
    return {
        "accuracy": _last_value(story, "test_accuracy"),
        "best": max(_scalar_values(story, "test_accuracy"), default=None),
        "loss": None if folder.load_job().get("timing_only") else _latest_loss(story),
        "rounds": story.rounds,
        "time_s": story.end,
        "wall_s": folder.load_summary().get("wall_s"),
        "bytes": folder.load_summary().get("bytes", received + sent),
        "energy_j": float(joules[0]) if joules is not None else None,
        "samples": folder.load_summary().get("samples"),
        "devices": len(fleet.members) if fleet is not None else len(shown_devices(story, folder)),
        "lost": _event_count(story, "lost"),
        "late": _event_count(story, "late"),
    }


def _event_count(story: RunHistory, name: str) -> int:
    return sum(many for (_, event), many in story.counts.items() if event == name)


def _latest_loss(story: RunHistory) -> float | None:
    return _last_value(story, "test_loss") if _scalar_values(story, "test_loss") else _last_value(story, "loss")


def _scalar_values(story: RunHistory, name: str) -> Sequence[float]:
    found = [series.values for (key, _), series in story.series.items() if key == name]
    return found[0] if found else ()


def _last_value(story: RunHistory, name: str) -> float | None:
    values = _scalar_values(story, name)
    return values[-1] if values else None


def _listed_events(events: Sequence[JournalEvent], rows: Sequence[str]) -> list[list[Any]]:
    """Time, row, name and words of what happened; where there is too much of it, every so many."""
    places = {name: row for row, name in enumerate(rows)}
    loud = [event for event in events if event.name not in _QUIET and event.node in places]
    step = max(1, -(-len(loud) // _MOST_EVENTS))
    return [[event.at, places[event.node], event.name, _event_text(event)] for event in loud[::step]]


def _event_text(event: JournalEvent) -> str:
    fields = event.fields
    if event.name == "link":
        return "cut off" if fields.get("value") == 0 else "connected again"
    if event.name == "partition" and fields.get("cuts") is not None and fields.get("order"):
        starts = [0, *fields["cuts"]]
        return ", ".join(f"{name} from layer {start}" for name, start in zip(fields["order"], starts, strict=False))
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name != "value")


def _layer_partitions(story: RunHistory) -> list[dict[str, Any]]:
    """Who held which layers from when on. How many layers there are is told by the records, or by the highest seen."""
    found = [event for event in story.events if event.name == "partition" and event.fields.get("cuts") is not None]
    seen = [detail["layers"][-1] + 1 for detail in story.details if isinstance(detail.get("layers"), tuple)]
    seen += [max(event.fields["cuts"], default=0) + 1 for event in found]
    layers = max((event.fields["layers"] for event in found if "layers" in event.fields), default=max(seen, default=1))
    return [{"at": event.at, **event.fields, "layers": layers} for event in found]


def shown_devices(story: RunHistory, folder: RunFolder) -> list[str]:
    """Every device in the fleet's order, then those that only the journal knows; the busiest if there are too many."""
    fleet = folder.load_fleet()
    known = [device.name for device in fleet.members] if fleet is not None else []
    seen = [*story.tracks, *(event.node for event in story.events), *(node for _, node in story.series)]
    found = [name for name in dict.fromkeys([*known, *seen]) if name != COORDINATOR]
    if len(found) <= MOST_ROWS:
        return found
    busiest = sorted(found, key=lambda name: -len(story.tracks.get(name, ())))[:MOST_ROWS]
    return [name for name in found if name in set(busiest)]


def describe_devices(story: RunHistory, folder: RunFolder, names: list[str]) -> list[dict[str, Any]]:
    """One entry for each device."""
    fleet = folder.load_fleet()
    boards = {device.name: device for device in fleet.members} if fleet is not None else {}
    gone = device_absences(story.events, story.end)
    return [_describe_device(story, name, boards.get(name), gone.get(name, [])) for name in names]


def _describe_device(story: RunHistory, name: str, board: Device | None, gone: list[Absence]) -> dict[str, Any]:
    track, load = story.tracks.get(name, SpanTrack()), story.tally.sum_devices([name])
    return {
        "name": name,
        "seconds": seconds_by_class(track, story.lanes, gone, story.end),
        "gone": [[absence.start, absence.end, absence.what] for absence in gone],
        "received": track.received,
        "sent": track.sent,
        "samples": load.samples,
        "updates": load.updates,
        "seen": max(track.ends, default=None),
        "lost": story.counts[name, "lost"],
        "late": story.counts[name, "late"],
        "state": "away" if gone and gone[-1].end >= story.end else story.tally.current_activity(name),
        **(_board_figures(board) if board is not None else {}),
    }


def _board_figures(board: Device) -> dict[str, float]:
    link = board.link
    figures = {"flops": board.flops, "memory": board.memory, "watts": board.watts}
    return {**figures, "up": float(link.up), "down": float(link.down), "latency": float(link.latency)}
