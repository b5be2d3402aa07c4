"""Packs spans for the browser: integer ticks in four columns, deflated, in base64.

A tick is a 2^31st of the run. If there are too many spans for a page, those of one kind that begin in the same short
interval are merged into one as long as all of them together.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from potluck.report.run_history import RunHistory, SpanTrack

__all__ = ["MAX_SPANS", "pack_spans"]

MAX_SPANS = 400_000
_TICKS = 2.0**31 - 1
_INTERVALS = 4096

Columns = npt.NDArray[np.float64]  # rows: start, length, round, detail


def pack_spans(history: RunHistory, nodes: Sequence[str], since: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The spans of these nodes, node by node; `since` skips that many of each."""
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
    whole[0], whole[1] = np.round(whole[0] / tick), np.round(whole[1] / tick)
    whole[0], whole[2] = np.diff(whole[0], prepend=0), np.diff(whole[2], prepend=0)
    return base64.b64encode(zlib.compress(whole.astype("<i4").tobytes(), 3)).decode()
