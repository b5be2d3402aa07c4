"""`[stream]`: where a job's data streams from, how fast, and what a device keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from potluck.data.buffers import BufferPolicy, TruncationPolicy
from potluck.data.streams.sources import ReplaySource, StreamSource
from potluck.data.streams.stream_rates import ScadlesRate, StreamRate
from potluck.errors import SettingError
from potluck.planning.data_injection import Injection
from potluck.settings import Settings, doc
from potluck.units import Bytes, Seconds

__all__ = ["StreamSettings"]


class StreamSettings(Settings, frozen=True, kw_only=True):
    """`[stream]`: where samples stream from, how fast, and what a device keeps."""

    source: Annotated[
        StreamSource, doc("Where samples come from in a live run; a simulated run always replays the device's shard.")
    ] = ReplaySource()
    rate: Annotated[StreamRate, doc("Samples per second of a replay.")] = ScadlesRate()
    buffer: Annotated[BufferPolicy, doc("Which samples are kept until they are used.")] = TruncationPolicy()
    late: Annotated[Seconds, doc("Age at which a record is dropped.")] = Seconds("inf")
    memory: Annotated[Bytes, doc("Largest size of a live device's buffer.")] = Bytes(256e6)
    raw_data: Annotated[bool, doc("Whether samples may leave the device on which they arrived.")] = True
    injection: Annotated[Injection | None, doc("Which devices send samples to which others.")] = None

    def unused_keys(self) -> Mapping[str, str]:
        if isinstance(self.source, ReplaySource):
            return {"late": 'with source = "replay", whose samples have no age'}
        return {}

    def __post_init__(self) -> None:
        if self.injection is not None and not self.raw_data:
            raise SettingError("injection", "shares samples between devices, which `raw_data = false` forbids")
        if not self.memory > 0:
            raise SettingError("memory", "must be above 0")

    def samples_in_memory(self, sample_bytes: int) -> int:
        """How many samples a live device's buffer takes."""
        return max(1, int(min(self.memory, 2.0**50) // max(sample_bytes, 1)))
