"""Settings that a run keeps for life: what its data, its random numbers and its loop follow from.

All others may change when it is resumed, such as `[stop]`, `[fleet.faults]`, learning rates and metrics. Where its code
and its data lie is no setting of the run: the model and the data themselves are compared (`run_inputs.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from potluck.errors import SettingError
from potluck.job import Job
from potluck.settings import encode_settings

__all__ = ["check_fixed_settings"]

_TABLES = {  # that are there or not
    "pipeline": "it decides which loop the run is in",
    "stream": "it decides whether a device has all its samples from the start",
}
_REASONS = {
    "seed": "all random numbers of the run follow from it",
    "task": "the run's model and data follow from it",
    "split": "it decides which device holds which samples",
    "stream.rate": "it decides which samples have arrived so far",
    "start": "the run goes on from its own weights",
    "timing_only": "it decides what a checkpoint holds",
    "samples": "it decides how much each device has",
}
_FREE = ("task.metrics", "task.data.path")


def check_fixed_settings(before: Job, now: Job) -> None:
    """Refuse to resume a run with other settings than it began with, where they cannot change."""
    old, new = encode_settings(before), encode_settings(now)
    for key, reason in _TABLES.items():
        if (key in old) != (key in new):
            raise _refusal(key, old.get(key), reason)
    for key, reason in _REASONS.items():
        for path, value in _differences(_value_at(old, key), _value_at(new, key), key):
            if path not in _FREE:
                raise _refusal(path, value, reason)
    names = [device.name for device in before.fleet.members]
    if before.pipeline is None and names != [device.name for device in now.fleet.members]:
        raise _refusal("fleet.devices", ", ".join(names), "each of these devices holds samples of its own")


def _refusal(path: str, old: Any, reason: str) -> SettingError:
    text = "it was not set" if old is None else f"it is {_shorten(str(old))}"
    return SettingError(path, f"cannot change in a run ({text}), because {reason}; leave it out, or start a new run")


def _value_at(table: dict[str, Any], path: str) -> Any:
    value: Any = table
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The paths below which two values differ, each with the old value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield path, old


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:79]}…"
