"""Quantities over rounds, time, bytes and energy: one curve, four axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.report.run_folder import RunFolder
from potluck.report.run_history import RunHistory, ScalarSeries
from potluck.report.time_breakdown import BusyTime

__all__ = ["EnergyEstimate", "device_signals", "run_curves", "thinned_indices"]

_MOST_SIGNALS = 200  # lines of one quantity
_POINTS_OF_A_SIGNAL = 400

Array = npt.NDArray[np.float64]


class EnergyEstimate:
    """A proxy for the energy that the fleet has used: each board's watts times the seconds it was busy."""

    def __init__(self, story: RunHistory, folder: RunFolder) -> None:
        fleet = folder.load_fleet()
        self.watts = {device.name: device.watts for device in fleet.members} if fleet is not None else {}
        self._busy = {
            name: BusyTime(track, story.lanes) for name in self.watts if (track := story.tracks.get(name)) is not None
        }

    def joules_until(self, moments: Array) -> Array | None:
        """Joules by each moment; None where the watts are not known."""
        total = np.zeros(len(moments))
        for name, busy in self._busy.items():
            total += self.watts[name] * busy.busy_s_until(moments)
        return total if self.watts else None


def run_curves(story: RunHistory, energy: EnergyEstimate, nodes: set[str]) -> list[dict[str, Any]]:
    """Every quantity that is not a device's own, thinned, with its axes."""
    found = []
    for (name, node), series in story.series.items():
        if node not in nodes:
            found.append({"name": name, **_curve_axes(series, energy)})
    return found


def device_signals(story: RunHistory, nodes: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The devices' own quantities over time, by name: buffers, rates, shares and whatever else they note."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, node), series in sorted(story.series.items()):
        lines = found.setdefault(name, []) if node in nodes else []
        if node in nodes and len(lines) < _MOST_SIGNALS:
            kept = thinned_indices(series.values, _POINTS_OF_A_SIGNAL)
            lines.append(
                {"node": node, "at": _rounded_values(series.at, kept), "values": _rounded_values(series.values, kept)}
            )
    return found


def _curve_axes(series: ScalarSeries, energy: EnergyEstimate) -> dict[str, list[float]]:
    kept = thinned_indices(series.values)
    moments = np.array(series.at)[kept]
    axes = {"values": _rounded_values(series.values, kept), "time": _rounded_values(series.at, kept)}
    if min(series.rounds, default=-1) >= 0:
        axes["round"] = _rounded_values(series.rounds, kept)
    if min(series.traffic, default=-1) >= 0:
        axes["bytes"] = _rounded_values(series.traffic, kept)
    joules = energy.joules_until(moments)
    if joules is not None:
        axes["energy"] = [float(f"{value:.6g}") for value in joules]
    return axes


def _rounded_values(column: Any, kept: npt.NDArray[np.int64]) -> list[float]:
    return [float(f"{value:.9g}") for value in np.array(column)[kept]]


def thinned_indices(values: Sequence[float] | npt.NDArray[np.float64], most: int = 1000) -> npt.NDArray[np.int64]:
    """The places to keep, in order; all of them if they are no more than `most`."""
    found = np.asarray(values, dtype=np.float64)
    if len(found) <= most:
        return np.arange(len(found))
    edges = np.linspace(0, len(found), max(most // 4, 1) + 1).astype(np.int64)
    kept = {0, len(found) - 1}
    for first, after in pairwise(edges):
        bucket = found[first:after]
        kept.update((first, after - 1, first + int(bucket.argmin()), first + int(bucket.argmax())))
    return np.array(sorted(kept), dtype=np.int64)
