"""User-defined streams for device processes: samples that fit the small job, of classes 0 to 9."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiomqtt
import numpy as np

from potluck.data.streams import StreamSample, pack_record

SHAPE = (1, 8, 8)


def sample(number: int) -> tuple[Any, int]:
    return np.full(SHAPE, number % 7, np.uint8), number % 10


async def steady(device: str, per_second: float = 400.0) -> AsyncIterator[tuple[Any, int]]:
    """Samples without end."""
    number = 0
    while True:
        await asyncio.sleep(1 / per_second)
        yield sample(number)
        number += 1


def end_marker(device: str) -> Path:
    """Once this file exists, the device's sensor fails or ends."""
    return Path(tempfile.gettempdir()) / f"potluck-test-{device}.over"


async def failing(device: str) -> AsyncIterator[tuple[Any, int]]:
    async for item in steady(device):
        yield item
        if end_marker(device).exists():
            raise OSError("sensor unplugged")


async def dirty(device: str) -> AsyncIterator[Any]:
    """Every fourth item of d-0 is not a sample."""
    number = 0
    async for item in steady(device):
        number += 1
        yield "rubbish" if device == "d-0" and number % 4 == 0 else item


async def ending(device: str) -> AsyncIterator[tuple[Any, int]]:
    async for item in steady(device):
        yield item
        if end_marker(device).exists():
            return


class Publishing(threading.Thread):
    """Sends a device's samples to a broker until it is stopped; every tenth message is invalid."""

    def __init__(self, port: int, device: str, topic: str) -> None:
        super().__init__(name=f"sensor-{device}", daemon=True)
        self._port, self._device, self._topic = port, device, topic
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        asyncio.run(self._publish())

    async def _publish(self) -> None:
        while not self._over.is_set():
            try:
                async with aiomqtt.Client("127.0.0.1", self._port, timeout=2.0) as client:
                    await self._send(client)
            except aiomqtt.MqttError:
                await asyncio.sleep(0.05)

    async def _send(self, client: aiomqtt.Client) -> None:
        number = 0
        async for x, y in steady(self._device):
            if self._over.is_set():
                return
            number += 1
            await client.publish(
                self._topic, b"rubbish" if number % 10 == 0 else pack_record(StreamSample(x, y)), qos=1
            )

    def end(self) -> None:
        self._over.set()
        self.join(10)
