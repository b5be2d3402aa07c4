"""Gives the samples of an `IterableDataset` numbers, in the order in which it yields them.

A run on such data is a run on streams: device d of n gets the samples d, d + n, d + 2n, … as they arrive.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from potluck.data.buffers.range_queue import Numbers
from potluck.data.samples import Indices
from potluck.errors import DataError

__all__ = ["IterableOrder", "NumberedIterable"]

_ENDLESS = 2**62
_KEPT_SAMPLES = 65_536


class NumberedIterable:
    """Sample `k` of an iterable data set, which starts again at its end; samples read ahead are kept for a while."""

    def __init__(self, iterable: Any, seed_generators: Callable[[int], None]) -> None:
        self._iterable = iterable
        self._seed_generators = seed_generators
        self._iterator: Iterator[Any] = iter(())
        self._next = 0  # the number of the next sample of this pass
        self._length: int | None = None  # known after the first pass
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._begin_pass()

    def __len__(self) -> int:
        return _ENDLESS

    def __getitem__(self, number: int) -> Any:
        while number not in self._kept:
            if self._length is not None:
                number %= self._length
                if number in self._kept:
                    break
            if number < self._next:
                self._begin_pass()
            self._read_next()
        return self._kept[number]

    def _begin_pass(self) -> None:
        self._seed_generators(0)
        self._iterator, self._next = iter(self._iterable), 0

    def _read_next(self) -> None:
        self._seed_generators(self._next)
        try:
            self._kept[self._next] = next(self._iterator)
        except StopIteration:
            if not self._next:
                raise DataError("the iterable data set yields no samples") from None
            self._length = self._next
            self._begin_pass()
            return
        self._next += 1
        if len(self._kept) > _KEPT_SAMPLES:
            self._kept.popitem(last=False)


class IterableOrder:
    """Sample k of a device's stream, where all devices divide one iterable data set."""

    def __init__(self, device: int, devices: int) -> None:
        self._device = device
        self._devices = devices

    def sample_ids(self, numbers: Numbers) -> Indices:
        """Which samples these are."""
        return self._device + np.asarray(numbers, np.int64) * self._devices
