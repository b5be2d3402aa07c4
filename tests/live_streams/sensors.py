"""Streams of a user's own, for devices that are processes: samples of the small job's kind, of classes 0 to 9."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

SHAPE = (1, 8, 8)


def sample(number: int) -> tuple[Any, int]:
    return np.full(SHAPE, number % 7, np.uint8), number % 10


async def steady(device: str, per_second: float = 400.0) -> AsyncIterator[tuple[Any, int]]:
    """For ever."""
    number = 0
    while True:
        await asyncio.sleep(1 / per_second)
        yield sample(number)
        number += 1


async def failing(device: str) -> AsyncIterator[tuple[Any, int]]:
    """The sensor of d-0 breaks after a while."""
    seen = 0
    async for given in steady(device):
        yield given
        seen += 1
        if device == "d-0" and seen == 60:
            raise OSError("sensor unplugged")


async def dirty(device: str) -> AsyncIterator[Any]:
    """Every fourth of what d-0 says is no sample."""
    number = 0
    async for given in steady(device):
        number += 1
        yield "rubbish" if device == "d-0" and number % 4 == 0 else given


async def ending(device: str) -> AsyncIterator[tuple[Any, int]]:
    """That of d-0 has no more to say."""
    seen = 0
    async for given in steady(device):
        yield given
        seen += 1
        if device == "d-0" and seen == 60:
            return
