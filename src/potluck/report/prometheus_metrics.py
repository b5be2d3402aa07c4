"""The figures of runs as Prometheus reads them: text, one line per figure and run or device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["prometheus_text"]

_OF_A_RUN = {
    "accuracy": ("potluck_accuracy", "gauge", "Accuracy on held-out data, from 0 to 1."),
    "loss": ("potluck_loss", "gauge", "Loss on held-out data, else in training."),
    "rounds": ("potluck_rounds_total", "counter", "Rounds that were closed."),
    "time_s": ("potluck_time_seconds", "counter", "Time of the run's own clock."),
    "bytes": ("potluck_bytes_total", "counter", "Bytes sent and received by all."),
    "energy_j": ("potluck_energy_joules", "counter", "Board watts times busy seconds, all devices."),
    "lost": ("potluck_lost_total", "counter", "How often a device was lost."),
    "late": ("potluck_late_total", "counter", "How often a device was late for its round."),
}


def prometheus_text(views: Iterable[Mapping[str, Any]]) -> str:
    """Everything about these runs in Prometheus' text format."""
    found = list(views)
    return "\n".join([*_run_lines(found), *_device_lines(found)]) + "\n"


def _run_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    for figure, (name, kind, said) in _OF_A_RUN.items():
        yield from (f"# HELP {name} {said}", f"# TYPE {name} {kind}")
        for one in views:
            value = one["figures"].get(figure)
            if value is not None:
                yield f"{name}{_format_labels(run=one['id'], recipe=one['recipe'])} {float(value)!r}"
    yield from ("# HELP potluck_running Whether the run is going on.", "# TYPE potluck_running gauge")
    yield from (f"potluck_running{_format_labels(run=one['id'])} {int(one['status'] == 'running')}" for one in views)


def _device_lines(views: list[Mapping[str, Any]]) -> Iterator[str]:
    name = "potluck_device_seconds_total"
    yield from (f"# HELP {name} Seconds of a device by what it was doing.", f"# TYPE {name} counter")
    for one in views:
        for device in one["devices"]:
            for what, spent in device["seconds"].items():
                if spent > 0:
                    yield f"{name}{_format_labels(run=one['id'], device=device['name'], doing=what)} {spent!r}"
    name = "potluck_device_bytes_total"
    yield from (f"# HELP {name} Bytes that a device moved.", f"# TYPE {name} counter")
    for one in views:
        for device in one["devices"]:
            for way in ("received", "sent"):
                labels = _format_labels(run=one["id"], device=device["name"], direction=way)
                yield f"{name}{labels} {float(device[way])!r}"


def _format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in labels.items()) + "}"


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
