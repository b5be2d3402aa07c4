"""What every source shares: it is an async iterator of samples, and nothing that it is sent can end it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from potluck.data.samples import Samples
from potluck.data.streams.arrivals import Arrivals
from potluck.data.streams.records import Expected, Refusals, Sample, unpack
from potluck.data.streams.replaying import Order
from potluck.settings import Part

__all__ = ["Clock", "Inlet", "Stock", "StreamSource", "named", "pauses"]

_log = logging.getLogger("potluck")


class Clock(Protocol):
    """Who moves time; a Node is one."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Stock:
    """A data set to replay: which samples, in which order, when."""

    samples: Samples
    order: Order
    arrivals: Arrivals


@dataclass
class Inlet:
    """One device's end of its stream: what fits is let in, the rest is counted and dropped."""

    device: str
    expected: Expected
    clock: Clock
    late_s: float = math.inf
    stock: Stock | None = None
    wall: Callable[[], float] = time.time  # the clock that senders stamp their records with
    refusals: Refusals = field(default_factory=Refusals)
    breaks: int = 0  # how often the connection was lost

    def read(self, record: bytes | None) -> Sample | None:
        """The sample in a record, unless something is wrong with it."""
        sample = unpack(record or b"", self.expected, self.refusals)
        return self._checked(None if sample is None or self._is_late(sample) else sample)

    def admit(self, sample: Sample) -> Sample | None:
        """A sample that came in no record, unless something is wrong with it."""
        if not self.expected.fits(sample):
            self.refusals.malformed += 1
            return self._checked(None)
        return self._checked(None if self._is_late(sample) else sample)

    def _checked(self, sample: Sample | None) -> Sample | None:
        """As it is; the first that is refused is said at once, since a device that gets no other would only wait."""
        if sample is None and self.refusals.total == 1:
            kinds = ", ".join(kind for kind, count in msgspec.structs.asdict(self.refusals).items() if count)
            _log.warning("%s: a record is %s and was dropped; wanted are %s", self.device, kinds, self.expected.words)
        return sample

    def broke(self, waits: Iterator[float]) -> float:
        """The connection was lost; how long to wait before it is tried again."""
        self.breaks += 1
        return next(waits)

    def _is_late(self, sample: Sample) -> bool:
        late = sample.time is not None and not self.wall() - sample.time <= self.late_s
        self.refusals.late += late
        return late


class StreamSource(Part, frozen=True, kw_only=True):
    """A live stream's origin; a subclass with a `tag` is all that a new one needs."""

    def samples(self, inlet: Inlet) -> AsyncIterator[Sample]:
        raise NotImplementedError


def pauses(first_s: float = 0.5, most_s: float = 30.0) -> Iterator[float]:
    """How long to wait before each new attempt: twice as long every time."""
    pause = first_s
    while True:
        yield pause
        pause = min(2 * pause, most_s)


def named(pattern: str, device: str) -> str:
    """A topic's name for one device."""
    return pattern.replace("{device}", device)
