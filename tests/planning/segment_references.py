"""Reference planners for segments: the published dynamic programmes, and brute force over all cut sets.

`published_plan` costs O(L³) and follows the paper's two programmes, one per direction; `brute_force_plan` costs
O(L·2^L) and relies on the timing model alone.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from potluck.errors import UserError
from potluck.planning.segments.segment_costs import Direction, check_direction, check_layer_seconds, check_seconds
from potluck.planning.segments.segment_plan import SegmentPlan

__all__ = ["brute_force_plan", "published_plan"]

Floats = npt.NDArray[np.float64]
_MAX_LAYERS = 20


def published_plan(
    compute: Iterable[float], transfer: Iterable[float], overhead: float, direction: Direction = "pull"
) -> SegmentPlan:
    """The two dynamic programmes over layers covered and segments used, as the paper states them."""
    computing, transferring = _checked_arrays(compute, transfer, overhead, direction)
    layers = len(computing)
    if not layers:
        return SegmentPlan((), 0.0, "published", direction, 0)
    ends, parents = (_pull_programme if direction == "pull" else _push_programme)(computing, transferring, overhead)
    count = int(np.argmin(ends[:, layers]))
    boundaries = _trace_boundaries(parents, count, layers)
    cuts = boundaries if direction == "pull" else [layers - boundary for boundary in boundaries][::-1]
    return SegmentPlan(tuple(b - 1 for b in cuts), float(ends[count, layers]), "published", direction, layers)


def _pull_programme(compute: Floats, transfer: Floats, overhead: float) -> tuple[Floats, npt.NDArray[np.intp]]:
    """A[n][m] = min_k { max(A[n−1][k], n·Δt + P(m)) + F(m) − F(k) }, with the k that gave it."""
    forward, pulled = _prefix_sums(compute), _prefix_sums(transfer)
    size = len(forward)
    running = _mask_non_segments(forward[None, :] - forward[:, None])
    ends, parents = _empty_tables(size)
    for n in range(1, size):
        choices = np.maximum(ends[n - 1][:, None], n * overhead + pulled[None, :]) + running
        parents[n] = choices.argmin(axis=0)
        ends[n] = choices.min(axis=0)
    return ends, parents


def _push_programme(compute: Floats, transfer: Floats, overhead: float) -> tuple[Floats, npt.NDArray[np.intp]]:
    """B[n][m] = min_k { max(B[n−1][k], C(m)) + Δt + G(m) − G(k) }, with the k that gave it."""
    backward, pushed = _prefix_sums(compute[::-1]), _prefix_sums(transfer[::-1])
    size = len(backward)
    sending = _mask_non_segments(pushed[None, :] - pushed[:, None]) + overhead
    ends, parents = _empty_tables(size)
    for n in range(1, size):
        choices = np.maximum(ends[n - 1][:, None], backward[None, :]) + sending
        parents[n] = choices.argmin(axis=0)
        ends[n] = choices.min(axis=0)
    return ends, parents


def _empty_tables(size: int) -> tuple[Floats, npt.NDArray[np.intp]]:
    ends = np.full((size, size), np.inf)
    ends[0, 0] = 0.0
    return ends, np.zeros((size, size), dtype=np.intp)


def _mask_non_segments(durations: Floats) -> Floats:
    """Only pairs k < m are segments."""
    return np.where(np.tri(len(durations), dtype=bool), np.inf, durations)


def _prefix_sums(values: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))


def _trace_boundaries(parents: npt.NDArray[np.intp], count: int, layers: int) -> list[int]:
    boundaries = []
    boundary = layers
    for n in range(count, 1, -1):
        boundary = int(parents[n, boundary])
        boundaries.append(boundary)
    return boundaries[::-1]


def brute_force_plan(
    compute: Iterable[float], transfer: Iterable[float], overhead: float, direction: Direction = "pull"
) -> SegmentPlan:
    """The best of all 2^(L−1) cut sets."""
    computing, transferring = _checked_arrays(compute, transfer, overhead, direction)
    layers = len(computing)
    if layers > _MAX_LAYERS:
        raise UserError(f"{layers} layers have too many cut sets to try them all; give at most {_MAX_LAYERS}")
    if not layers:
        return SegmentPlan((), 0.0, "brute-force", direction, 0)
    makespans = (_all_pull_makespans if direction == "pull" else _all_push_makespans)(computing, transferring, overhead)
    best = int(makespans.argmin())
    cuts = tuple(i for i in range(layers - 1) if best >> i & 1)
    return SegmentPlan(cuts, float(makespans[best]), "brute-force", direction, layers)


def _all_pull_makespans(compute: Floats, transfer: Floats, overhead: float) -> Floats:
    """Makespans of all cut sets; bit i of a set says that a segment ends after layer i."""
    sets = np.arange(2 ** (len(compute) - 1))
    arrived, computed, waiting = np.zeros(len(sets)), np.zeros(len(sets)), np.zeros(len(sets))
    for i in range(len(compute)):
        waiting += compute[i]
        arrived += transfer[i]
        ends = sets >> i & 1 == 1 if i < len(compute) - 1 else np.ones(len(sets), dtype=bool)
        arrived = np.where(ends, arrived + overhead, arrived)
        computed = np.where(ends, np.maximum(computed, arrived) + waiting, computed)
        waiting = np.where(ends, 0.0, waiting)
    return computed


def _all_push_makespans(compute: Floats, transfer: Floats, overhead: float) -> Floats:
    sets = np.arange(2 ** (len(compute) - 1))
    sent, waiting = np.zeros(len(sets)), np.zeros(len(sets))
    computed = 0.0
    for i in reversed(range(len(compute))):
        computed += compute[i]
        waiting += transfer[i]
        ends = sets >> (i - 1) & 1 == 1 if i else np.ones(len(sets), dtype=bool)
        sent = np.where(ends, np.maximum(sent, computed) + overhead + waiting, sent)
        waiting = np.where(ends, 0.0, waiting)
    return sent


def _checked_arrays(
    compute: Iterable[float], transfer: Iterable[float], overhead: float, direction: Direction
) -> tuple[Floats, Floats]:
    check_direction(direction)
    check_seconds(overhead=overhead)
    computing, transferring = check_layer_seconds(compute, transfer)
    return np.array(computing), np.array(transferring)
