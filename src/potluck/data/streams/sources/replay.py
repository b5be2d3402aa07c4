"""The device's share of the task's own data, at the stream's rate and by the world's clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from potluck.data.streams.records import Sample
from potluck.data.streams.sources.base import Inlet, Stock, StreamSource

__all__ = ["Replay", "replayed"]


class Replay(StreamSource, frozen=True, kw_only=True, tag="replay"):
    """The task's data, over and over, in a new order each time."""

    def samples(self, inlet: Inlet) -> AsyncIterator[Sample]:
        assert inlet.stock is not None, "a replay needs data"
        return replayed(inlet.stock, inlet)


async def replayed(stock: Stock, inlet: Inlet) -> AsyncIterator[Sample]:
    """Each sample at its moment; whoever is behind gets them at once."""
    number = stock.arrivals.arrived(inlet.clock.now())
    while (due := stock.arrivals.when(number + 1)) < float("inf"):
        if due > inlet.clock.now():
            await inlet.clock.sleep(due - inlet.clock.now())
        (found,) = stock.order.ids(np.array([number]))
        yield Sample(stock.samples.x[found].numpy(), int(stock.samples.y[found]))
        number += 1
