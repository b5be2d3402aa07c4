"""Decide what a device keeps of its stream and what it trains on next.

    persistence   everything, oldest first                     O(S·T) samples after T seconds at S samples per second
    truncation    what streamed in since the last batch        O(S)
    value         the classes that need it most                O(S)

A policy is applied when a sample arrives and when a batch is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from potluck.data.buffers.range_queue import Numbers, RangeQueue
from potluck.settings import Part, doc
from potluck.units import Seconds

__all__ = [
    "BufferPolicy",
    "Labels",
    "PersistencePolicy",
    "TruncationPolicy",
    "ValuePolicy",
    "Worth",
    "allocate_by_weight",
]

Labels = Callable[[Numbers], npt.NDArray[np.int64]]
Worth = Mapping[int, float]  # per class; an unknown class counts as average
Counts = npt.NDArray[np.int64]


class BufferPolicy(Part, frozen=True, kw_only=True):
    """Decides which streamed samples are kept and which are trained on next."""

    @property
    def needs_losses(self) -> bool:
        """Whether it depends on the recent loss of each class."""
        return False

    def max_samples(self, rate: float, want: int) -> float:
        """The largest buffer at this stream rate for a device that wants `want` samples next."""
        raise NotImplementedError

    def trim_samples(self, held: RangeQueue, bound: int, labels: Labels, worth: Worth) -> RangeQueue:
        """Return what is kept of more than `bound` samples."""
        held.cut_oldest(len(held) - bound)
        return held

    def split_batch(self, held: RangeQueue, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, RangeQueue]:
        """Return the next `want` samples (at least that many are held) and what is kept."""
        raise NotImplementedError


class PersistencePolicy(BufferPolicy, frozen=True, kw_only=True, tag="persistence"):
    """Keeps everything and trains on the oldest samples."""

    most: Annotated[
        Annotated[int, msgspec.Meta(ge=1)] | None,
        doc("Largest number of samples kept, the newest; without it there is no limit."),
    ] = None

    def max_samples(self, rate: float, want: int) -> float:
        return math.inf if self.most is None else max(self.most, want)

    def split_batch(self, held: RangeQueue, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, RangeQueue]:
        return held.pop_oldest(want), held


class TruncationPolicy(BufferPolicy, frozen=True, kw_only=True, tag="truncation"):
    """Keeps the newest samples since the last batch."""

    seconds: Annotated[Seconds, doc("Length of the stream that is kept, or the next batch if that is larger.")] = (
        Seconds(1)
    )

    def max_samples(self, rate: float, want: int) -> float:
        return max(want, math.ceil(self.seconds * rate), 1)

    def split_batch(self, held: RangeQueue, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, RangeQueue]:
        held.cut_oldest(len(held) - want)
        return held.all_numbers(), RangeQueue()


class ValuePolicy(TruncationPolicy, frozen=True, kw_only=True, tag="value"):
    """Keeps as many samples as `truncation`, divided among the classes; what a batch leaves stays."""

    worth: Annotated[
        Literal["loss", "same"], doc("Divide by the classes' recent loss in the device's own turns, or evenly.")
    ] = "loss"

    @property
    def needs_losses(self) -> bool:
        return self.worth == "loss"

    def trim_samples(self, held: RangeQueue, bound: int, labels: Labels, worth: Worth) -> RangeQueue:
        numbers = held.all_numbers()
        kept = _choose_by_class(numbers[::-1], labels, worth, bound)[::-1]
        return RangeQueue.from_numbers(numbers[kept])

    def split_batch(self, held: RangeQueue, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, RangeQueue]:
        numbers = held.all_numbers()
        used = _choose_by_class(numbers, labels, worth, want)
        return numbers[used], RangeQueue.from_numbers(numbers[~used])


def allocate_by_weight(available: Counts, weights: npt.NDArray[np.float64], total: int) -> Counts:
    """Divide `total` slots in proportion to the weights; slots that a class cannot fill go to the others."""
    order = np.argsort(available / weights, kind="stable")
    slots = np.zeros(len(available), np.int64)
    left = min(total, int(available.sum()))
    for rank, one in enumerate(order):
        rest = order[rank:]
        shares = left * weights[rest] / weights[rest].sum()
        if available[one] > shares[0]:
            slots[rest] = _round_to_total(shares, left)
            break
        slots[one] = available[one]
        left -= int(available[one])
    return slots


def _round_to_total(shares: npt.NDArray[np.float64], total: int) -> Counts:
    """Round to integers that add up to `total`: largest remainders first, ties by order."""
    whole = np.floor(shares).astype(np.int64)
    up = np.argsort(whole - shares, kind="stable")[: total - int(whole.sum())]
    whole[up] += 1
    return whole


def _choose_by_class(numbers: Numbers, labels: Labels, worth: Worth, count: int) -> npt.NDArray[np.bool_]:
    """Which `count` of the numbers to choose: by class as `allot` says, and within a class the first."""
    classes, member, available = np.unique(labels(numbers), return_inverse=True, return_counts=True)
    weights = _class_weights([int(one) for one in classes], worth)
    chosen = np.zeros(len(numbers), np.bool_)
    for one, slots in enumerate(allocate_by_weight(available, weights, count)):
        chosen[np.flatnonzero(member == one)[:slots]] = True
    return chosen


def _class_weights(classes: Sequence[int], worth: Worth) -> npt.NDArray[np.float64]:
    """What these classes are worth, none less than half of the mean: else nobody would notice that it is forgotten."""
    unknown = max(worth.values(), default=1.0)
    weights = np.array([max(worth.get(one, unknown), 1e-6) for one in classes])
    return np.maximum(weights, weights.mean() / 2) if len(weights) else weights
