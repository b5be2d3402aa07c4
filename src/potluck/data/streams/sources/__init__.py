"""Sources of live streams, one module per kind."""

from potluck.data.streams.sources.kafka_source import KafkaSource
from potluck.data.streams.sources.mqtt_source import MqttSource
from potluck.data.streams.sources.python_source import PythonSource
from potluck.data.streams.sources.replay_source import ReplaySource
from potluck.data.streams.sources.stream_source import ReplayData, StreamClock, StreamIngest, StreamSource

__all__ = [
    "KafkaSource",
    "MqttSource",
    "PythonSource",
    "ReplayData",
    "ReplaySource",
    "StreamClock",
    "StreamIngest",
    "StreamSource",
]
