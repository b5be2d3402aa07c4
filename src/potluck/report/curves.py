"""Quantities over rounds, time, bytes and energy: one curve, four axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.report.folder import RunFolder
from potluck.report.shares import Busy
from potluck.report.story import Series, Story
from potluck.report.thinning import thin

__all__ = ["Energy", "curves", "signals"]

_MOST_SIGNALS = 200  # lines of one quantity
_POINTS_OF_A_SIGNAL = 400

Array = npt.NDArray[np.float64]


class Energy:
    """A proxy for the energy that the fleet has used: each board's watts times the seconds it was busy."""

    def __init__(self, story: Story, folder: RunFolder) -> None:
        fleet = folder.fleet()
        self.watts = {device.name: device.watts for device in fleet.members} if fleet is not None else {}
        self._busy = {
            name: Busy(track, story.lanes) for name in self.watts if (track := story.tracks.get(name)) is not None
        }

    def until(self, moments: Array) -> Array | None:
        """Joules by each moment; None where the watts are not known."""
        total = np.zeros(len(moments))
        for name, busy in self._busy.items():
            total += self.watts[name] * busy.until(moments)
        return total if self.watts else None


def curves(story: Story, energy: Energy, nodes: set[str]) -> list[dict[str, Any]]:
    """Every quantity that is not a device's own, thinned, with its axes."""
    found = []
    for (name, node), series in story.series.items():
        if node not in nodes:
            found.append({"name": name, **_axes(series, energy)})
    return found


def signals(story: Story, nodes: set[str]) -> dict[str, list[dict[str, Any]]]:
    """The devices' own quantities over time, by name: buffers, rates, shares and whatever else they note."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, node), series in sorted(story.series.items()):
        lines = found.setdefault(name, []) if node in nodes else []
        if node in nodes and len(lines) < _MOST_SIGNALS:
            kept = thin(series.values, _POINTS_OF_A_SIGNAL)
            lines.append({"node": node, "at": _rounded(series.at, kept), "values": _rounded(series.values, kept)})
    return found


def _axes(series: Series, energy: Energy) -> dict[str, list[float]]:
    kept = thin(series.values)
    moments = np.array(series.at)[kept]
    axes = {"values": _rounded(series.values, kept), "time": _rounded(series.at, kept)}
    if min(series.rounds, default=-1) >= 0:
        axes["round"] = _rounded(series.rounds, kept)
    if min(series.traffic, default=-1) >= 0:
        axes["bytes"] = _rounded(series.traffic, kept)
    joules = energy.until(moments)
    if joules is not None:
        axes["energy"] = [float(f"{value:.6g}") for value in joules]
    return axes


def _rounded(column: Any, kept: npt.NDArray[np.int64]) -> list[float]:
    return [float(f"{value:.9g}") for value in np.array(column)[kept]]
