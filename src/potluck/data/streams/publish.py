"""The other end of a stream, for tests and measurements: a data set sent to an MQTT broker at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import numpy as np

from potluck.data.streams.records import Sample, pack
from potluck.data.streams.sources.base import Clock, Stock, pauses
from potluck.data.streams.sources.mqtt import Broker, heed_cancellation

__all__ = ["Publisher", "RealClock"]


class RealClock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Publisher:
    """Sends the samples of a stock at their moments; what a broker has not confirmed is sent again."""

    def __init__(self, broker: Broker, topic: str, stock: Stock, clock: Clock, wall: Callable[[], float] = time.time):
        self._broker = broker
        self._topic = topic
        self._stock = stock
        self._clock = clock
        self._wall = wall
        self.sent = 0
        self.breaks = 0

    async def run(self, count: int | None = None) -> None:
        """Send `count` samples, or go on until cancelled."""
        import aiomqtt

        waits = pauses(0.2, 5.0)
        while count is None or self.sent < count:
            try:
                await self._connected(count)
                waits = pauses(0.2, 5.0)
            except aiomqtt.MqttError:
                self.breaks += 1
                await self._clock.sleep(next(waits))

    async def _connected(self, count: int | None) -> None:
        async with self._broker.connected("", 1_000_000, 0) as client:
            while count is None or self.sent < count:
                pause = self._stock.arrivals.when(self.sent + 1) - self._clock.now()
                if pause > 0:
                    await self._clock.sleep(pause)
                await client.publish(self._topic, self._record(), qos=1, timeout=2.0)
                heed_cancellation()
                self.sent += 1

    def _record(self) -> bytes:
        (found,) = self._stock.order.ids(np.array([self.sent]))
        samples = self._stock.samples
        return pack(Sample(samples.x[found].numpy(), int(samples.y[found]), self._wall()))
