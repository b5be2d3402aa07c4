"""Curves of a run: quantities over rounds, time, bytes and energy, thinned to what a page can show."""

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

_MAX_SIGNALS = 200  # lines per quantity
_SIGNAL_POINTS = 400

Array = npt.NDArray[np.float64]


class EnergyEstimate:
    """A proxy for the energy used by the fleet: each device's watts times its busy seconds."""

    def __init__(self, history: RunHistory, folder: RunFolder) -> None:
        fleet = folder.load_fleet()
        self.watts = {device.name: device.watts for device in fleet.members} if fleet is not None else {}
        self._busy = {
            name: BusyTime(track, history.lanes)
            for name in self.watts
            if (track := history.tracks.get(name)) is not None
        }

    def joules_until(self, moments: Array) -> Array | None:
        """Joules used until each moment; None if the watts are unknown."""
        total = np.zeros(len(moments))
        for name, busy in self._busy.items():
            total += self.watts[name] * busy.busy_s_until(moments)
        return total if self.watts else None


def run_curves(history: RunHistory, energy: EnergyEstimate, nodes: set[str]) -> list[dict[str, Any]]:
    """All quantities that do not belong to a device, thinned, with their axes."""
    curves = []
    for (name, node), series in history.series.items():
        if node not in nodes:
            direction = {"better": series.better} if series.better else {}
            curves.append({"name": name, **direction, **_curve_axes(series, energy)})
    return curves


def device_signals(history: RunHistory, nodes: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The quantities of devices over time, by name: buffers, rates, fractions and others that they record."""
    signals: dict[str, list[dict[str, Any]]] = {}
    for (name, node), series in sorted(history.series.items()):
        lines = signals.setdefault(name, []) if node in nodes else []
        if node in nodes and len(lines) < _MAX_SIGNALS:
            kept = thinned_indices(series.values, _SIGNAL_POINTS)
            lines.append(
                {"node": node, "at": _rounded_values(series.at, kept), "values": _rounded_values(series.values, kept)}
            )
    return signals


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


def thinned_indices(values: Sequence[float] | npt.NDArray[np.float64], max_points: int = 1000) -> npt.NDArray[np.int64]:
    """Indices of the points to keep so that the curve looks the same; all of them up to `max_points`.

    Of each bucket the first, last, smallest and largest value are kept.
    """
    points = np.asarray(values, dtype=np.float64)
    if len(points) <= max_points:
        return np.arange(len(points))
    edges = np.linspace(0, len(points), max(max_points // 4, 1) + 1).astype(np.int64)
    kept = {0, len(points) - 1}
    for first, after in pairwise(edges):
        bucket = points[first:after]
        kept.update((first, after - 1, first + int(bucket.argmin()), first + int(bucket.argmax())))
    return np.array(sorted(kept), dtype=np.int64)
