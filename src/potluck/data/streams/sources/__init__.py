"""Where a live stream comes from: one small file for each kind."""

from potluck.data.streams.sources.base import Clock, Inlet, Stock, StreamSource
from potluck.data.streams.sources.kafka import Kafka
from potluck.data.streams.sources.mqtt import Mqtt
from potluck.data.streams.sources.own import Own
from potluck.data.streams.sources.replay import Replay

__all__ = ["Clock", "Inlet", "Kafka", "Mqtt", "Own", "Replay", "Stock", "StreamSource"]
