"""Stream sources: what all have in common, a replay, and a generator of the user's.

A source is an async iterator of samples, and nothing that it is sent can end it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
from torch.utils._pytree import tree_map

from potluck.data.iterable_stream import IterableOrder
from potluck.data.samples import SampleSet
from potluck.data.streams.replay_feed import ReplayOrder
from potluck.data.streams.stream_arrivals import StreamArrivals
from potluck.data.streams.stream_records import RecordRefusals, SampleSpec, StreamSample, unpack_record
from potluck.errors import DataError
from potluck.settings import Part, doc, load_object

__all__ = [
    "PythonSource",
    "ReplayData",
    "ReplaySource",
    "StreamClock",
    "StreamIngest",
    "StreamSource",
    "backoff_pauses",
    "device_topic",
    "replay_samples",
]


_log = logging.getLogger("potluck")


class StreamClock(Protocol):
    """Who moves time; a Node is one."""

    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class ReplayData:
    """A data set to replay: which samples, in which order, when."""

    samples: SampleSet
    order: ReplayOrder | IterableOrder
    arrivals: StreamArrivals


@dataclass
class StreamIngest:
    """One device's end of its stream: what fits is let in, the rest is counted and dropped."""

    device: str
    expected: SampleSpec
    clock: StreamClock
    late_s: float = math.inf
    replay: ReplayData | None = None
    wall_clock: Callable[[], float] = time.time  # the clock that senders stamp their records with
    refusals: RecordRefusals = field(default_factory=RecordRefusals)
    disconnects: int = 0  # how often the connection was lost

    def read_record(self, record: bytes | None) -> StreamSample | None:
        """The sample in a record, unless something is wrong with it."""
        sample = unpack_record(record or b"", self.expected, self.refusals)
        return self._log_first_refusal(None if sample is None or self._is_late(sample) else sample)

    def check_sample(self, sample: StreamSample) -> StreamSample | None:
        """A sample that came in no record, unless something is wrong with it."""
        if not self.expected.matches_sample(sample):
            self.refusals.malformed += 1
            return self._log_first_refusal(None)
        return self._log_first_refusal(None if self._is_late(sample) else sample)

    def _log_first_refusal(self, sample: StreamSample | None) -> StreamSample | None:
        """As it is; the first that is refused is said at once, since a device that gets no other would only wait."""
        if sample is None and self.refusals.total == 1:
            kinds = ", ".join(kind for kind, count in msgspec.structs.asdict(self.refusals).items() if count)
            _log.warning(
                "%s: a record is %s and was dropped; wanted are %s", self.device, kinds, self.expected.description
            )
        return sample

    def count_disconnect(self, waits: Iterator[float]) -> float:
        """The connection was lost; how long to wait before it is tried again."""
        self.disconnects += 1
        return next(waits)

    def _is_late(self, sample: StreamSample) -> bool:
        late = sample.time is not None and not self.wall_clock() - sample.time <= self.late_s
        self.refusals.late += late
        return late


class StreamSource(Part, frozen=True, kw_only=True):
    """A live stream's origin; a subclass with a `tag` is all that a new one needs."""

    def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        raise NotImplementedError


def backoff_pauses(first_s: float = 0.5, most_s: float = 30.0) -> Iterator[float]:
    """How long to wait before each new attempt: twice as long every time."""
    pause = first_s
    while True:
        yield pause
        pause = min(2 * pause, most_s)


def device_topic(pattern: str, device: str) -> str:
    """A topic's name for one device."""
    return pattern.replace("{device}", device)


class PythonSource(StreamSource, frozen=True, kw_only=True, tag="python"):
    """Samples from your own asynchronous generator."""

    generator: Annotated[str, doc("`package.module:function`, called with the device's name; yields (input, target).")]

    async def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        function = load_object(self.generator, "stream.source.generator")
        made: Any = None
        try:
            made = function(ingest.device)
            if not hasattr(made, "__aiter__"):
                raise DataError(f"stream.source.generator: {self.generator!r} must be an `async def` that yields")
            async for given in made:
                sample = ingest.check_sample(_to_sample(given))
                if sample is not None:
                    yield sample
        except DataError:
            raise
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            raise DataError(f"stream.source.generator: {self.generator!r} failed: {words}") from error
        finally:
            if hasattr(made, "aclose"):
                await made.aclose()


def _to_sample(given: Any) -> StreamSample:
    """What it yielded, as far as it is a pair; anything else becomes a sample that cannot fit."""
    try:
        x, y = given
        label = np.asarray(y).ndim == 0 if not isinstance(y, dict | tuple | list) else False
        return StreamSample(tree_map(np.asarray, x), int(y) if label else tree_map(np.asarray, y))
    except (TypeError, ValueError, RuntimeError):
        return StreamSample(np.zeros(0), -1)


class ReplaySource(StreamSource, frozen=True, kw_only=True, tag="replay"):
    """The device's own shard, replayed at `stream.rate`."""

    def samples(self, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
        assert ingest.replay is not None, "a replay needs data"
        return replay_samples(ingest.replay, ingest)


async def replay_samples(replay: ReplayData, ingest: StreamIngest) -> AsyncIterator[StreamSample]:
    """Yield each sample when it is due; overdue samples come at once."""
    number = replay.arrivals.arrived_by(ingest.clock.now())
    labels = replay.samples.labels if replay.samples.has_labels else None
    while (due := replay.arrivals.arrival_time(number + 1)) < float("inf"):
        if due > ingest.clock.now():
            await ingest.clock.sleep(due - ingest.clock.now())
        (sample_id,) = replay.order.sample_ids(np.array([number]))
        yield StreamSample(None, 0 if labels is None else int(labels[sample_id]), row=int(sample_id))
        number += 1
