"""Breaks a device's time down by class; every instant belongs to exactly one class, so they add up to the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from potluck.report.device_absence import Absence
from potluck.report.run_history import LANES, SpanTrack

__all__ = ["CLASSES", "BusyTime", "seconds_by_class"]

# compute      without a transfer                 hidden       with a transfer at the same time
# receive/send without computation                recover      repairs after a loss
# stream       waiting for streamed samples
# wait         present, but with nothing to do    dead/cut     not running, or disconnected
CLASSES = ("compute", "hidden", "receive", "send", "recover", "stream", "other", "wait", "cut", "dead")

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]


def seconds_by_class(
    track: SpanTrack, lanes: Sequence[int], absences: Sequence[Absence], end: float
) -> dict[str, float]:
    """Seconds by class; they add up to `end`."""
    moments, open_by = _sweep_spans(track, lanes, absences, end)
    lengths = np.diff(moments)
    compute, receive, send, recover, stream, other, dead, cut = (row[:-1] > 0 for row in open_by)
    conditions = [dead, recover, compute & (receive | send), compute, receive, send, stream, other, cut]
    names = ["dead", "recover", "hidden", "compute", "receive", "send", "stream", "other", "cut"]
    which = np.select(conditions, range(len(names)), default=len(names))
    sums = np.bincount(which, weights=lengths, minlength=len(names) + 1)
    seconds = dict(zip([*names, "wait"], map(float, sums), strict=True))
    return {name: seconds[name] for name in CLASSES}


class BusyTime:
    """Cumulative seconds that a device has been computing, receiving or sending."""

    def __init__(self, track: SpanTrack, lanes: Sequence[int]) -> None:
        self._at, open_by = _sweep_spans(track, lanes, (), max(track.ends, default=0.0))
        self._done = np.concatenate([[0.0], np.cumsum(np.diff(self._at) * (open_by[:3, :-1].sum(axis=0) > 0))])

    def busy_s_until(self, moments: Array) -> Array:
        seconds: Array = np.interp(moments, self._at, self._done)
        return seconds


def _sweep_spans(
    track: SpanTrack, lanes: Sequence[int], absences: Sequence[Absence], end: float
) -> tuple[Array, Counts]:
    """All moments at which a span begins or ends, from 0 to `end`, and the open spans per lane after each."""
    span_lanes = (
        np.asarray(lanes, dtype=np.int64)[np.frombuffer(track.details, dtype=np.int32)] if len(track) else _no_lanes()
    )
    kept = span_lanes != LANES.index("round")
    starts = np.concatenate([np.array(track.starts)[kept], [absence.start for absence in absences]])
    ends = np.concatenate([np.array(track.ends)[kept], [absence.end for absence in absences]])
    rows = np.concatenate([span_lanes[kept], [6 if absence.what == "dead" else 7 for absence in absences]]).astype(
        np.int64
    )
    moments = np.clip(np.concatenate([[0.0], starts, ends, [end]]), 0.0, end)
    steps = np.zeros((8, len(moments)), dtype=np.int32)
    steps[rows, 1 + np.arange(len(rows))] = 1
    steps[rows, 1 + len(rows) + np.arange(len(rows))] = -1
    order = np.argsort(moments, kind="stable")
    return moments[order], np.cumsum(steps[:, order], axis=1, dtype=np.int32)


def _no_lanes() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)
