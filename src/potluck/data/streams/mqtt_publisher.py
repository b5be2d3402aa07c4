"""Publishes a data set to an MQTT broker at a given rate, for tests and measurements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from potluck.data.streams.sources.mqtt_source import MqttBroker, raise_if_cancelled
from potluck.data.streams.sources.stream_source import ReplayData, StreamClock, backoff_pauses
from potluck.data.streams.stream_records import pack_record, read_sample

__all__ = ["MqttPublisher", "WallClock"]


class WallClock:
    """Seconds since it was created."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class MqttPublisher:
    """Publishes the samples of a replay on schedule; unconfirmed ones are sent again."""

    def __init__(
        self,
        broker: MqttBroker,
        topic: str,
        replay: ReplayData,
        clock: StreamClock,
        wall: Callable[[], float] = time.time,
    ):
        self._broker = broker
        self._topic = topic
        self._replay = replay
        self._clock = clock
        self._wall = wall
        self.sent = 0
        self.disconnects = 0

    async def run(self, count: int | None = None) -> None:
        """Publish `count` samples, or publish until cancelled."""
        import aiomqtt

        waits = backoff_pauses(0.2, 5.0)
        while count is None or self.sent < count:
            try:
                await self._publish_samples(count)
                waits = backoff_pauses(0.2, 5.0)
            except aiomqtt.MqttError:
                self.disconnects += 1
                await self._clock.sleep(next(waits))

    async def _publish_samples(self, count: int | None) -> None:
        async with self._broker.open_client("", 1_000_000, 0) as client:
            while count is None or self.sent < count:
                pause = self._replay.arrivals.arrival_time(self.sent + 1) - self._clock.now()
                if pause > 0:
                    await self._clock.sleep(pause)
                await client.publish(self._topic, self._next_record(), qos=1, timeout=2.0)
                raise_if_cancelled()
                self.sent += 1

    def _next_record(self) -> bytes:
        (sample_id,) = self._replay.order.sample_ids(np.array([self.sent]))
        return pack_record(read_sample(self._replay.samples, int(sample_id))._replace(time=self._wall()))
