"""Sources of live streams: a replay, a generator of the user's, MQTT, Kafka."""

from potluck.data.streams.sources.kafka_source import KafkaSource
from potluck.data.streams.sources.mqtt_source import MqttSource
from potluck.data.streams.sources.stream_source import (
    PythonSource,
    ReplayData,
    ReplaySource,
    StreamClock,
    StreamIngest,
    StreamSource,
)

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
