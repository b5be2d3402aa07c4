"""Formats the figures of runs as Prometheus metrics: one line per figure and run or device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["prometheus_text"]

_RUN_METRICS = {
    "accuracy": ("potluck_accuracy", "gauge", "Accuracy on held-out data, from 0 to 1."),
    "loss": ("potluck_loss", "gauge", "Loss on held-out data, else in training."),
    "rounds": ("potluck_rounds_total", "counter", "Closed rounds."),
    "time_s": ("potluck_time_seconds", "counter", "Seconds on the run's clock."),
    "bytes": ("potluck_bytes_total", "counter", "Bytes sent and received by all devices."),
    "energy_j": ("potluck_energy_joules", "counter", "Board watts times busy seconds, all devices."),
    "lost": ("potluck_lost_total", "counter", "How often a device was lost."),
    "late": ("potluck_late_total", "counter", "How often a device was late for its round."),
}


def prometheus_text(views: Iterable[Mapping[str, Any]]) -> str:
    """The metrics of these runs in Prometheus' text format."""
    runs = list(views)
    return "\n".join([*_run_lines(runs), *_device_lines(runs)]) + "\n"


def _run_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    for figure, (name, kind, description) in _RUN_METRICS.items():
        yield from (f"# HELP {name} {description}", f"# TYPE {name} {kind}")
        for view in views:
            value = view["figures"].get(figure)
            if value is not None:
                yield f"{name}{_format_labels(run=view['id'], recipe=view['recipe'])} {float(value)!r}"
    yield from ("# HELP potluck_running Whether the run is in progress.", "# TYPE potluck_running gauge")
    yield from (f"potluck_running{_format_labels(run=view['id'])} {int(view['status'] == 'running')}" for view in views)


def _device_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    name = "potluck_device_seconds_total"
    yield from (f"# HELP {name} Seconds of a device by what it was doing.", f"# TYPE {name} counter")
    for view in views:
        for device in view["devices"]:
            for activity, spent in device["seconds"].items():
                if spent > 0:
                    yield f"{name}{_format_labels(run=view['id'], device=device['name'], doing=activity)} {spent!r}"
    name = "potluck_device_bytes_total"
    yield from (f"# HELP {name} Bytes sent or received by a device.", f"# TYPE {name} counter")
    for view in views:
        for device in view["devices"]:
            for direction in ("received", "sent"):
                labels = _format_labels(run=view["id"], device=device["name"], direction=direction)
                yield f"{name}{labels} {float(device[direction])!r}"


def _format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items()) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
