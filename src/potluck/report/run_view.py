"""Builds the view of a run: everything that a page shows, as plain data read from the run folder alone."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.fleet import Device
from potluck.report.device_absence import Absence, device_absences
from potluck.report.run_curves import EnergyEstimate, device_signals, run_curves
from potluck.report.run_folder import RunFolder
from potluck.report.run_history import JournalEvent, RunHistory, SpanTrack
from potluck.report.time_breakdown import seconds_by_class

__all__ = ["MAX_ROWS", "MAX_SPANS", "build_run_view", "job_title", "pack_spans", "span_positions"]


MAX_ROWS = 300  # devices shown one by one
COORDINATOR = "coordinator"
_MAX_EVENTS = 3000
_NOT_LISTED = {"late"}  # counted per device; too many to list beside the faults

MAX_SPANS = 400_000
_TICKS = 2.0**31 - 1
_INTERVALS = 4096
Columns = npt.NDArray[np.float64]  # rows: start, length, round, detail


def build_run_view(history: RunHistory, folder: RunFolder, since: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A run as the page's scripts expect it; with `since` (see `span_positions`) only the spans after that."""
    names = shown_devices(history, folder)
    energy = EnergyEstimate(history, folder)
    rows = [COORDINATOR, *names]
    return {
        **_run_header(history, folder),
        "figures": _run_figures(history, folder, energy),
        "curves": [] if folder.load_job().get("timing_only") else run_curves(history, energy, set(names)),
        "signals": device_signals(history, set(names)),
        "devices": describe_devices(history, folder, names),
        "events": _listed_events(history.events, rows),
        "partitions": _layer_partitions(history),
        "pareto": folder.pareto_entries(),
        "details": history.details,
        "lanes": history.lanes,
        "spans": pack_spans(history, rows, since),
    }


def span_positions(history: RunHistory) -> dict[str, int]:
    """The number of spans of each node so far."""
    return {node: len(track) for node, track in history.tracks.items()}


def _run_header(history: RunHistory, folder: RunFolder) -> dict[str, Any]:
    summary, job = folder.load_summary(), folder.load_job()
    return {
        "id": folder.name,
        "title": summary.get("name") or job_title(job) or folder.name,
        "recipe": summary.get("recipe") or job.get("recipe", ""),
        "status": folder.run_status(),
        "reason": summary.get("reason", ""),
        "warning": folder.storage_warning(),
        "standbys": folder.standby_sentences(),
        "limit": summary.get("limit") or history.totals.bottleneck_sentence(history.end),
        "world": folder.world_kind(),
        "unreadable": history.unreadable,
        "end": history.end,
        "stop": job.get("stop", {}),
        "job": folder.job_text(),
    }


def job_title(job: Mapping[str, Any]) -> str:
    task = job.get("task")
    if job.get("name") or not isinstance(task, dict):
        return str(job.get("name") or task or "")
    data = task.get("data", "")
    return f"{task.get('model', '')} on {data.get('kind', '') if isinstance(data, dict) else data}"


def _run_figures(history: RunHistory, folder: RunFolder, energy: EnergyEstimate) -> dict[str, Any]:
    fleet = folder.load_fleet()
    joules = energy.joules_until(np.array([history.end]))
    received = sum(track.received for track in history.tracks.values())
    sent = sum(track.sent for track in history.tracks.values())
    return {
        "accuracy": _last_value(history, "test_accuracy"),
        "best": max(_scalar_values(history, "test_accuracy"), default=None),
        "loss": None if folder.load_job().get("timing_only") else _latest_loss(history),
        "metrics": _metric_figures(history),
        "rounds": history.rounds,
        "time_s": history.end,
        "wall_s": folder.load_summary().get("wall_s"),
        "bytes": folder.load_summary().get("bytes", received + sent),
        "energy_j": float(joules[0]) if joules is not None else None,
        "samples": folder.load_summary().get("samples"),
        "devices": len(fleet.members) if fleet is not None else len(shown_devices(history, folder)),
        "lost": _event_count(history, "lost"),
        "late": _event_count(history, "late"),
    }


def _metric_figures(history: RunHistory) -> list[dict[str, Any]]:
    """The latest and the best value of each metric that says which way is better, the loss aside."""
    figures = []
    for (key, _), series in history.series.items():
        name = key.removeprefix("test_")
        if series.better and name not in ("loss", "accuracy"):
            best = max(series.values) if series.better == "higher" else min(series.values)
            figures.append({"name": name, "value": series.values[-1], "best": best, "better": series.better})
    return figures


def _event_count(history: RunHistory, name: str) -> int:
    return sum(count for (_, event), count in history.counts.items() if event == name)


def _latest_loss(history: RunHistory) -> float | None:
    return _last_value(history, "test_loss") if _scalar_values(history, "test_loss") else _last_value(history, "loss")


def _scalar_values(history: RunHistory, name: str) -> Sequence[float]:
    matching = [series.values for (key, _), series in history.series.items() if key == name]
    return matching[0] if matching else ()


def _last_value(history: RunHistory, name: str) -> float | None:
    values = _scalar_values(history, name)
    return values[-1] if values else None


def _listed_events(events: Sequence[JournalEvent], rows: Sequence[str]) -> list[list[Any]]:
    """Time, row, name and text of events; if there are too many, every n-th one."""
    row_of = {name: row for row, name in enumerate(rows)}
    listed = [event for event in events if event.name not in _NOT_LISTED and event.node in row_of]
    step = max(1, -(-len(listed) // _MAX_EVENTS))
    return [[event.at, row_of[event.node], event.name, _event_text(event)] for event in listed[::step]]


def _event_text(event: JournalEvent) -> str:
    fields = event.fields
    if event.name == "link":
        return "disconnected" if fields.get("value") == 0 else "reconnected"
    if event.name == "partition" and fields.get("cuts") is not None and fields.get("order"):
        starts = [0, *fields["cuts"]]
        return ", ".join(f"{name} from layer {start}" for name, start in zip(fields["order"], starts, strict=False))
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name != "value")


def _layer_partitions(history: RunHistory) -> list[dict[str, Any]]:
    """Which device held which layers from when on. Without a record of the layers, the highest index counts."""
    changes = [event for event in history.events if event.name == "partition" and event.fields.get("cuts") is not None]
    layer_counts = [detail["layers"][-1] + 1 for detail in history.details if isinstance(detail.get("layers"), tuple)]
    layer_counts += [max(event.fields["cuts"], default=0) + 1 for event in changes]
    layers = max(
        (event.fields["layers"] for event in changes if "layers" in event.fields), default=max(layer_counts, default=1)
    )
    return [{"at": event.at, **event.fields, "layers": layers} for event in changes]


def shown_devices(history: RunHistory, folder: RunFolder) -> list[str]:
    """All devices in the fleet's order, then those only in the journal; the busiest ones if there are too many."""
    fleet = folder.load_fleet()
    known = [device.name for device in fleet.members] if fleet is not None else []
    recorded = [*history.tracks, *(event.node for event in history.events), *(node for _, node in history.series)]
    devices = [name for name in dict.fromkeys([*known, *recorded]) if name != COORDINATOR]
    if len(devices) <= MAX_ROWS:
        return devices
    busiest = sorted(devices, key=lambda name: -len(history.tracks.get(name, ())))[:MAX_ROWS]
    return [name for name in devices if name in set(busiest)]


def describe_devices(history: RunHistory, folder: RunFolder, names: list[str]) -> list[dict[str, Any]]:
    """One entry per device: its figures, its load, and where its time went."""
    fleet = folder.load_fleet()
    members = {device.name: device for device in fleet.members} if fleet is not None else {}
    absences = device_absences(history.events, history.end)
    return [_describe_device(history, name, members.get(name), absences.get(name, [])) for name in names]


def _describe_device(history: RunHistory, name: str, device: Device | None, absences: list[Absence]) -> dict[str, Any]:
    track, load = history.tracks.get(name, SpanTrack()), history.totals.sum_devices([name])
    return {
        "name": name,
        "seconds": seconds_by_class(track, history.lanes, absences, history.end),
        "gone": [[absence.start, absence.end, absence.what] for absence in absences],
        "received": track.received,
        "sent": track.sent,
        "samples": load.samples,
        "updates": load.updates,
        "seen": max(track.ends, default=None),
        "lost": history.counts[name, "lost"],
        "late": history.counts[name, "late"],
        "state": "away" if absences and absences[-1].end >= history.end else history.totals.current_activity(name),
        **(_device_figures(device) if device is not None else {}),
    }


def _device_figures(device: Device) -> dict[str, float]:
    link = device.link
    figures = {"flops": device.flops, "memory": device.memory, "watts": device.watts}
    return {**figures, "up": float(link.up), "down": float(link.down), "latency": float(link.latency)}


def pack_spans(history: RunHistory, nodes: Sequence[str], since: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The spans of these nodes, node by node: integer ticks in four columns, deflated, in base64.

    A tick is a 2^31st of the run; `since` skips that many spans of each node. If there are too many spans for a page,
    those of one kind that begin in the same short interval are merged into one as long as all of them together.
    """
    since = since or {}
    tracks = [(history.tracks.get(node, SpanTrack()), since.get(node, 0)) for node in nodes]
    total = sum(len(track) - first for track, first in tracks)
    packed = [_span_columns(track, first) for track, first in tracks]
    if total > MAX_SPANS:
        packed = [_merge_spans(columns, history, _bucket_s(history.end, total)) for columns in packed]
    tick = max(history.end, 1e-9) / _TICKS
    return {"tick": tick, "counts": [columns.shape[1] for columns in packed], "columns": _deflate_columns(packed, tick)}


def _span_columns(track: SpanTrack, first: int) -> Columns:
    starts = np.array(track.starts[first:])
    return np.stack([starts, np.array(track.ends[first:]) - starts, track.rounds[first:], track.details[first:]])


def _bucket_s(end: float, total: int) -> float:
    return end / _INTERVALS * max(1.0, total / MAX_SPANS / 8)


def _merge_spans(columns: Columns, history: RunHistory, bucket_s: float) -> Columns:
    if not columns.shape[1]:
        return columns
    kinds = np.asarray(history.lanes, dtype=np.int64)[columns[3].astype(np.int64)]
    keys = np.stack([np.floor(columns[0] / bucket_s), kinds])
    _, first, bucket = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    kept = columns[:, first]
    kept[1] = np.bincount(bucket.ravel(), weights=columns[1])
    return kept


def _deflate_columns(packed: Sequence[Columns], tick: float) -> str:
    """Starts and rounds as differences, which compress well."""
    whole = np.concatenate([*packed, np.zeros((4, 0))], axis=1)
    whole[:2] = np.clip(np.round(whole[:2] / tick), 0, _TICKS)
    whole[0], whole[2] = np.diff(whole[0], prepend=0), np.diff(whole[2], prepend=0)
    return base64.b64encode(zlib.compress(whole.astype("<i4").tobytes(), 3)).decode()
