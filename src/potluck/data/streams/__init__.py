"""Streaming data: rates, sources, and the feed that a device's loop reads from."""

from potluck.data.streams.live_feed import LiveFeed, SampleStore, run_source
from potluck.data.streams.replay_feed import ReplayFeed, ReplayOrder
from potluck.data.streams.settings import StreamSettings
from potluck.data.streams.sources import ReplayData, StreamIngest, StreamSource
from potluck.data.streams.stream_arrivals import StreamArrivals
from potluck.data.streams.stream_feed import StreamFeed, StreamFeedState
from potluck.data.streams.stream_rates import StreamRate
from potluck.data.streams.stream_records import RecordRefusals, SampleSpec, StreamSample, pack_record, unpack_record

__all__ = [
    "LiveFeed",
    "RecordRefusals",
    "ReplayData",
    "ReplayFeed",
    "ReplayOrder",
    "SampleSpec",
    "SampleStore",
    "StreamArrivals",
    "StreamFeed",
    "StreamFeedState",
    "StreamIngest",
    "StreamRate",
    "StreamSample",
    "StreamSettings",
    "StreamSource",
    "pack_record",
    "run_source",
    "unpack_record",
]
