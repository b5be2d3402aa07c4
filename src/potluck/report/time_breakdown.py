"""Where a device's time went: every instant belongs to exactly one class, so the classes add up to the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from potluck.report.device_absence import Absence
from potluck.report.run_history import LANES, SpanTrack

__all__ = ["CLASSES", "BusyTime", "seconds_by_class"]

# compute      nothing moves meanwhile            hidden       a transfer goes on behind the computation
# receive/send nothing is computed meanwhile      recover      repairs after a loss
# stream       waits for samples to come in
# wait         here, but with nothing to do       dead/cut     not here, or not to be reached
CLASSES = ("compute", "hidden", "receive", "send", "recover", "stream", "other", "wait", "cut", "dead")

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]


def seconds_by_class(track: SpanTrack, lanes: Sequence[int], gone: Sequence[Absence], end: float) -> dict[str, float]:
    """Seconds by class; they add up to `end`."""
    moments, open_by = _sweep_spans(track, lanes, gone, end)
    lengths = np.diff(moments)
    compute, receive, send, recover, stream, other, dead, cut = (row[:-1] > 0 for row in open_by)
    conditions = [dead, recover, compute & (receive | send), compute, receive, send, stream, other, cut]
    names = ["dead", "recover", "hidden", "compute", "receive", "send", "stream", "other", "cut"]
    which = np.select(conditions, range(len(names)), default=len(names))
    sums = np.bincount(which, weights=lengths, minlength=len(names) + 1)
    found = dict(zip([*names, "wait"], map(float, sums), strict=True))
    return {name: found[name] for name in CLASSES}


class BusyTime:
    """For how many seconds a device had been computing, receiving or sending, at any moment."""

    def __init__(self, track: SpanTrack, lanes: Sequence[int]) -> None:
        self._at, open_by = _sweep_spans(track, lanes, (), max(track.ends, default=0.0))
        self._done = np.concatenate([[0.0], np.cumsum(np.diff(self._at) * (open_by[:3, :-1].sum(axis=0) > 0))])

    def busy_s_until(self, moments: Array) -> Array:
        found: Array = np.interp(moments, self._at, self._done)
        return found


def _sweep_spans(track: SpanTrack, lanes: Sequence[int], gone: Sequence[Absence], end: float) -> tuple[Array, Counts]:
    """All moments at which anything begins or ends, from 0 to `end`, and how many of each lane are open after each."""
    about = (
        np.asarray(lanes, dtype=np.int64)[np.frombuffer(track.details, dtype=np.int32)] if len(track) else _no_lanes()
    )
    kept = about != LANES.index("round")
    starts = np.concatenate([np.array(track.starts)[kept], [absence.start for absence in gone]])
    ends = np.concatenate([np.array(track.ends)[kept], [absence.end for absence in gone]])
    rows = np.concatenate([about[kept], [6 if absence.what == "dead" else 7 for absence in gone]]).astype(np.int64)
    moments = np.clip(np.concatenate([[0.0], starts, ends, [end]]), 0.0, end)
    steps = np.zeros((8, len(moments)), dtype=np.int32)
    steps[rows, 1 + np.arange(len(rows))] = 1
    steps[rows, 1 + len(rows) + np.arange(len(rows))] = -1
    order = np.argsort(moments, kind="stable")
    return moments[order], np.cumsum(steps[:, order], axis=1, dtype=np.int32)


def _no_lanes() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)
