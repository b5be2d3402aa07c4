from __future__ import annotations

import pytest

from potluck.data.buffers import TruncationPolicy, ValuePolicy
from potluck.data.streams import StreamSettings
from potluck.data.streams.sources import KafkaSource, MqttSource, ReplaySource
from potluck.data.streams.stream_rates import ScadlesRate
from potluck.errors import SettingError
from potluck.planning.data_injection import BroadcastInjection
from potluck.settings import decode_settings, encode_settings


def test_a_stream_by_default_is_a_truncated_replay() -> None:
    stream = decode_settings({}, StreamSettings)
    assert (stream.source, stream.rate, stream.buffer) == (ReplaySource(), ScadlesRate(), TruncationPolicy())


def test_a_stream_survives_encoding_and_decoding() -> None:
    raw = {
        "source": {"kind": "mqtt", "host": "broker.local"},
        "rate": {"kind": "normal", "mean": 64, "level": {"kind": "random-walk"}},
        "buffer": {"kind": "value", "seconds": "2 s"},
        "injection": {"kind": "broadcast", "alpha": 0.05, "beta": 0.1},
        "late": "10 s",
        "memory": "64 MB",
    }
    stream = decode_settings(raw, StreamSettings)
    assert isinstance(stream.source, MqttSource)
    assert isinstance(stream.buffer, ValuePolicy)
    assert stream.injection == BroadcastInjection(alpha=0.05, beta=0.1)
    assert decode_settings(encode_settings(stream), StreamSettings) == stream
    assert decode_settings(encode_settings(StreamSettings()), StreamSettings) == StreamSettings()


def test_kafka_library_options_are_passed_through() -> None:
    stream = decode_settings({"source": {"kind": "kafka", "options": {"security.protocol": "ssl"}}}, StreamSettings)
    assert isinstance(stream.source, KafkaSource)
    assert stream.source.options == {"security.protocol": "ssl"}


def test_private_raw_data_is_not_shared() -> None:
    with pytest.raises(SettingError, match="raw_data"):
        decode_settings({"raw_data": False, "injection": "broadcast"}, StreamSettings)
    assert decode_settings({"raw_data": False}, StreamSettings).injection is None


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ({"memory": 0}, "memory"),
        ({"injection": {"kind": "broadcast", "alpha": 2}}, "injection.alpha"),
        ({"injection": {"alpha": 0.5}}, "injection.kind"),
        ({"rate": {"kind": "scadles", "set": "S3"}}, "rate.set"),
        ({"rate": {"kind": "constant", "per_second": 0}}, "rate.per_second"),
        ({"source": {"kind": "mqtt", "port": 0}}, "source.port"),
    ],
)
def test_a_wrong_setting_is_named_by_its_path(raw: dict[str, object], path: str) -> None:
    with pytest.raises(SettingError) as error:
        decode_settings(raw, StreamSettings)
    assert error.value.path == path


def test_memory_is_counted_in_samples() -> None:
    assert StreamSettings().samples_in_memory(3072) == 83_333
    assert decode_settings({"memory": "unlimited"}, StreamSettings).samples_in_memory(1) == 2**50
    assert decode_settings({"memory": "1 B"}, StreamSettings).samples_in_memory(3072) == 1
