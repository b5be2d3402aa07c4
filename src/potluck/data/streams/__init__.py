"""Data that streams in: how fast, from where, and what a device's loop sees of it."""

from potluck.data.streams.arrivals import Arrivals
from potluck.data.streams.feed import Feed, FeedState
from potluck.data.streams.live import LiveFeed, Store, pour
from potluck.data.streams.rates import Rate
from potluck.data.streams.records import Expected, Refusals, Sample, pack, unpack
from potluck.data.streams.replaying import Order, ReplayFeed
from potluck.data.streams.settings import Stream
from potluck.data.streams.sources import Inlet, Stock, StreamSource

__all__ = [
    "Arrivals",
    "Expected",
    "Feed",
    "FeedState",
    "Inlet",
    "LiveFeed",
    "Order",
    "Rate",
    "Refusals",
    "ReplayFeed",
    "Sample",
    "Stock",
    "Store",
    "Stream",
    "StreamSource",
    "pack",
    "pour",
    "unpack",
]
