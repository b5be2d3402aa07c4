from __future__ import annotations

import pytest

from potluck.data.buffers import Truncation, Value
from potluck.data.streams import Stream
from potluck.data.streams.rates import Published
from potluck.data.streams.sources import Kafka, Mqtt, Replay
from potluck.errors import SettingError
from potluck.planning.injection import Injection
from potluck.settings import decode, encode


def test_a_stream_by_default_is_a_truncated_replay() -> None:
    stream = decode({}, Stream)
    assert (stream.source, stream.rate, stream.buffer) == (Replay(), Published(), Truncation())


def test_a_stream_is_written_and_read_back() -> None:
    written = {
        "source": {"kind": "mqtt", "host": "broker.local"},
        "rate": {"kind": "normal", "mean": 64, "level": {"kind": "random-walk"}},
        "buffer": {"kind": "value", "seconds": "2 s"},
        "injection": {"alpha": 0.05, "beta": 0.1},
        "late": "10 s",
        "memory": "64 MB",
    }
    stream = decode(written, Stream)
    assert isinstance(stream.source, Mqtt)
    assert isinstance(stream.buffer, Value)
    assert stream.injection == Injection(alpha=0.05, beta=0.1)
    assert decode(encode(stream), Stream) == stream
    assert decode(encode(Stream()), Stream) == Stream()


def test_options_of_the_kafka_library_pass_through() -> None:
    stream = decode({"source": {"kind": "kafka", "options": {"security.protocol": "ssl"}}}, Stream)
    assert isinstance(stream.source, Kafka)
    assert stream.source.options == {"security.protocol": "ssl"}


def test_raw_data_that_must_stay_is_not_shared() -> None:
    with pytest.raises(SettingError, match="raw_data"):
        decode({"raw_data": False, "injection": {}}, Stream)
    assert decode({"raw_data": False}, Stream).injection is None


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"memory": 0}, "memory"),
        ({"injection": {"alpha": 2}}, "injection.alpha"),
        ({"rate": {"kind": "scadles", "set": "S3"}}, "rate.set"),
        ({"rate": {"kind": "constant", "per_second": 0}}, "rate.per_second"),
        ({"source": {"kind": "mqtt", "port": 0}}, "source.port"),
    ],
)
def test_a_wrong_setting_is_named_by_its_path(written: dict[str, object], path: str) -> None:
    with pytest.raises(SettingError) as error:
        decode(written, Stream)
    assert error.value.path == path


def test_memory_is_counted_in_samples() -> None:
    assert Stream().samples_in_memory(3072) == 83_333
    assert decode({"memory": "unlimited"}, Stream).samples_in_memory(1) == 2**50
    assert decode({"memory": "1 B"}, Stream).samples_in_memory(3072) == 1
