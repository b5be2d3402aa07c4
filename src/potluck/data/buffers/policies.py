"""What a device keeps of its stream, and what it trains on next.

    persistence   everything, oldest first                     O(S·T) samples after T seconds at S samples per second
    truncation    what streamed in since the last batch        O(S)
    value         the classes that need it most                O(S)

A policy is applied whenever the device looks at its buffer: when something arrives and when a batch is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from potluck.data.buffers.runs import Numbers, Runs
from potluck.settings import Part
from potluck.units import Seconds

__all__ = ["Buffer", "Labels", "Persistence", "Truncation", "Value", "Worth", "allot"]

Labels = Callable[[Numbers], npt.NDArray[np.int64]]
Worth = Mapping[int, float]  # of a class; one that is not known is worth as much as any
Counts = npt.NDArray[np.int64]


class Buffer(Part, frozen=True, kw_only=True):
    """A policy: it splits what is held into what is used and what is kept; everything else is dropped."""

    @property
    def learns(self) -> bool:
        """Whether it goes by what classes are worth, and so has to be told."""
        return False

    def bound(self, rate: float, want: int) -> float:
        """The most that may be held at this rate by a device that wants so many samples next."""
        raise NotImplementedError

    def trim(self, held: Runs, bound: int, labels: Labels, worth: Worth) -> Runs:
        """What is kept of more than `bound`."""
        held.cut_oldest(len(held) - bound)
        return held

    def take(self, held: Runs, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, Runs]:
        """The next `want` samples (there are so many), and what is kept."""
        raise NotImplementedError


class Persistence(Buffer, frozen=True, kw_only=True, tag="persistence"):
    """Keeps everything, or the newest `most`; trains on the oldest."""

    most: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def bound(self, rate: float, want: int) -> float:
        return math.inf if self.most is None else max(self.most, want)

    def take(self, held: Runs, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, Runs]:
        return held.pop_oldest(want), held


class Truncation(Buffer, frozen=True, kw_only=True, tag="truncation"):
    """Keeps the newest of what streamed in since the last batch, at most what streams in within `seconds`."""

    seconds: Seconds = Seconds(1)

    def bound(self, rate: float, want: int) -> float:
        return max(want, math.ceil(self.seconds * rate), 1)

    def take(self, held: Runs, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, Runs]:
        held.cut_oldest(len(held) - want)
        return held.numbers(), Runs()


class Value(Truncation, frozen=True, kw_only=True, tag="value"):
    """Keeps no more than truncation does, but what is left of a batch stays, and classes share the room by worth.

    A class's worth is its recent loss in the device's own turns; before the first, and where `worth` says so, all are
    worth the same, so that a common class cannot crowd out a rare one. What is learned well is still looked at now and
    then. Within a class the newest stay and the oldest are used first.
    """

    worth: Literal["loss", "same"] = "loss"

    @property
    def learns(self) -> bool:
        return self.worth == "loss"

    def trim(self, held: Runs, bound: int, labels: Labels, worth: Worth) -> Runs:
        numbers = held.numbers()
        kept = _chosen(numbers[::-1], labels, worth, bound)[::-1]
        return Runs.of(numbers[kept])

    def take(self, held: Runs, want: int, labels: Labels, worth: Worth) -> tuple[Numbers, Runs]:
        numbers = held.numbers()
        used = _chosen(numbers, labels, worth, want)
        return numbers[used], Runs.of(numbers[~used])


def allot(available: Counts, weights: npt.NDArray[np.float64], total: int) -> Counts:
    """`total` places in proportion to the weights, none more than it can fill; what it cannot goes to the others."""
    order = np.argsort(available / weights, kind="stable")
    places = np.zeros(len(available), np.int64)
    left = min(total, int(available.sum()))
    for rank, one in enumerate(order):
        rest = order[rank:]
        shares = left * weights[rest] / weights[rest].sum()
        if available[one] > shares[0]:
            places[rest] = _rounded(shares, left)
            break
        places[one] = available[one]
        left -= int(available[one])
    return places


def _rounded(shares: npt.NDArray[np.float64], total: int) -> Counts:
    """Whole numbers that add up to `total`: the largest remainders are rounded up, ties by order."""
    whole = np.floor(shares).astype(np.int64)
    up = np.argsort(whole - shares, kind="stable")[: total - int(whole.sum())]
    whole[up] += 1
    return whole


def _chosen(numbers: Numbers, labels: Labels, worth: Worth, count: int) -> npt.NDArray[np.bool_]:
    """Which `count` of the numbers to choose: by class as `allot` says, and within a class the first."""
    classes, member, available = np.unique(labels(numbers), return_inverse=True, return_counts=True)
    weights = _weights([int(one) for one in classes], worth)
    chosen = np.zeros(len(numbers), np.bool_)
    for one, places in enumerate(allot(available, weights, count)):
        chosen[np.flatnonzero(member == one)[:places]] = True
    return chosen


def _weights(classes: Sequence[int], worth: Worth) -> npt.NDArray[np.float64]:
    """What these classes are worth, none less than half of the mean: else nobody would notice that it is forgotten."""
    unknown = max(worth.values(), default=1.0)
    found = np.array([max(worth.get(one, unknown), 1e-6) for one in classes])
    return np.maximum(found, found.mean() / 2) if len(found) else found
