from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from potluck.data import from_tensors
from potluck.data.streams import RecordRefusals, SampleSpec, StreamIngest, StreamSample, pack_record, unpack_record
from potluck.data.streams.mqtt_publisher import WallClock
from potluck.data.streams.stream_records import read_sample

_EXPECTED = SampleSpec.labelled((2, 3), "f4", 4)


def _sample(y: int = 1, time: float | None = None) -> StreamSample:
    return StreamSample(np.arange(6, dtype=np.float32).reshape(2, 3), y, time)


@pytest.mark.parametrize("dtype", ["u1", "f4"])
def test_a_sample_survives_packing(dtype: str) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    sample = unpack_record(
        pack_record(StreamSample(x, 7, 12.5)), SampleSpec.labelled((3, 4), dtype, 10), refusals := RecordRefusals()
    )
    assert sample is not None
    np.testing.assert_array_equal(sample.x, x)
    assert (sample.y, sample.time, refusals.total) == (7, 12.5, 0)
    assert sample.x.dtype == np.dtype(dtype)


def test_the_record_format_matches_the_documentation() -> None:
    record = pack_record(StreamSample(np.array([[1, 2]], np.uint8), 3))
    assert msgspec.msgpack.decode(record) == [1, "u1", [1, 2], 3, b"\x01\x02", None]


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\xc1",
        b"hello",
        pack_record(_sample())[:-3],
        pack_record(_sample(y=4)),
        pack_record(_sample(y=-1)),
        pack_record(StreamSample(np.zeros((3, 2), np.float32), 1)),
        pack_record(StreamSample(np.zeros((2, 3), np.uint8), 1)),
        pack_record(StreamSample(np.full((2, 3), np.nan, np.float32), 1)),
        pack_record(StreamSample(np.full((2, 3), np.inf, np.float32), 1)),
        msgspec.msgpack.encode([1, "f4", [2, 3], 1, b"short", None]),
        msgspec.msgpack.encode([1, "f4", [2, -3], 1, bytes(24), None]),
        msgspec.msgpack.encode([2, "f4", [2, 3], 1, bytes(24), None]),
        msgspec.msgpack.encode([1, "O", [2, 3], 1, bytes(24), None]),
        msgspec.msgpack.encode([1, "f4", [2, 3], 1, bytes(24), None, "more"]),
        msgspec.msgpack.encode({"label": 1}),
    ],
)
def test_records_that_do_not_fit_the_task_are_counted_and_dropped(record: bytes) -> None:
    assert unpack_record(record, _EXPECTED, refusals := RecordRefusals()) is None
    assert refusals == RecordRefusals(malformed=1)


def test_oversized_records_are_dropped_undecoded() -> None:
    assert unpack_record(bytes(_EXPECTED.max_record_bytes + 1), _EXPECTED, refusals := RecordRefusals()) is None
    assert refusals == RecordRefusals(oversized=1)


@given(record=st.binary(max_size=400))
def test_arbitrary_bytes_are_handled(record: bytes) -> None:
    refusals = RecordRefusals()
    assert (unpack_record(record, _EXPECTED, refusals) is None) == (refusals.total == 1)


@given(offset=st.integers(0, 60), byte=st.integers(0, 255))
def test_damaged_records_are_handled(offset: int, byte: int) -> None:
    record = bytearray(pack_record(_sample(time=1.0)))
    record[offset % len(record)] = byte
    sample = unpack_record(bytes(record), _EXPECTED, RecordRefusals())
    assert sample is None or _EXPECTED.matches_sample(sample)


def test_a_late_record_is_counted_and_dropped() -> None:
    inlet = StreamIngest("a", _EXPECTED, WallClock(), late_s=10.0, wall_clock=lambda: 100.0)
    assert inlet.read_record(pack_record(_sample(time=89.9))) is None
    assert inlet.read_record(pack_record(_sample(time=90.1))) is not None
    assert inlet.read_record(pack_record(_sample())) is not None, "without a time nothing is late"
    assert inlet.read_record(pack_record(_sample(time=math.nan))) is None
    assert inlet.refusals == RecordRefusals(late=2)


def test_a_task_defines_the_shape_of_its_samples() -> None:
    x, y = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2, 0])
    expected = SampleSpec.from_dataset(from_tensors(x, y, x, y))
    assert expected == SampleSpec.labelled((1, 8, 8), "u1", 3)
    assert expected.sample_bytes == 64


def test_samples_of_any_kind_go_through_records() -> None:
    x = {"ids": torch.arange(12).view(4, 3), "mask": torch.ones(4, 3, dtype=torch.bool)}
    y = (torch.rand(4, 2), torch.arange(4.0))
    data = from_tensors(x, y, x, y)
    expected = SampleSpec.from_dataset(data)
    record = pack_record(read_sample(data.train, 2))
    sample = unpack_record(record, expected, refusals := RecordRefusals())
    assert sample is not None
    assert sample.x["ids"].tolist() == [6, 7, 8]
    assert sample.x["mask"].all()
    assert sample.y[1] == 2.0
    assert unpack_record(record[:-1], expected, refusals) is None
    assert unpack_record(pack_record(StreamSample(np.zeros(3), 1)), expected, refusals) is None
    assert refusals.malformed == 2
    assert len(record) <= expected.max_record_bytes
