"""`[stream]`: where a job's data streams from, how fast, and what a device keeps of it."""

from __future__ import annotations

from potluck.data.buffers import BufferPolicy, TruncationPolicy
from potluck.data.streams.sources import ReplaySource, StreamSource
from potluck.data.streams.stream_rates import ScadlesRate, StreamRate
from potluck.errors import SettingError
from potluck.planning.data_injection import Injection
from potluck.settings import Settings
from potluck.units import Bytes, Seconds

__all__ = ["StreamSettings"]


class StreamSettings(Settings, frozen=True, kw_only=True):
    """Without this table a device holds all of its data from the start."""

    source: StreamSource = ReplaySource()  # in live runs; the simulated world always replays
    rate: StreamRate = ScadlesRate()  # of a replay
    buffer: BufferPolicy = TruncationPolicy()
    late: Seconds = Seconds("inf")  # a record older than this is dropped
    memory: Bytes = Bytes(256e6)  # the most that a live device's buffer takes
    raw_data: bool = True  # whether samples may leave the device on which they streamed in
    injection: Injection | None = None

    def __post_init__(self) -> None:
        if self.injection is not None and not self.raw_data:
            raise SettingError("injection", "shares samples between devices, which `raw_data = false` forbids")
        if not self.memory > 0:
            raise SettingError("memory", "must be above 0")

    def samples_in_memory(self, sample_bytes: int) -> int:
        """How many samples a live device's buffer takes."""
        return max(1, int(min(self.memory, 2.0**50) // max(sample_bytes, 1)))
