"""Encodes one sample as a broker record: a MessagePack array simple enough to write on a sensor.

    [version, dtype, shape, label, data, time]
     1        "u1"   [3,32,32] 7   bytes  seconds since 1970, or nil

`data` holds the values in C order, little-endian. Nothing in a record is trusted: its size is checked before
decoding, its type, shape and label must fit the task, and its values must be finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from potluck.data.samples import Dataset
from potluck.errors import DataError

__all__ = ["RecordRefusals", "SampleSpec", "StreamSample", "pack_record", "unpack_record"]

_TYPES: dict[str, np.dtype[Any]] = {"u1": np.dtype("u1"), "f4": np.dtype("<f4")}
_HEADER_BYTES = 256  # more than enough for everything but the values


class StreamSample(NamedTuple):
    """An input as stored, its label, and when it was measured, if known."""

    x: npt.NDArray[Any]
    y: int
    time: float | None = None


class RecordRefusals(msgspec.Struct):
    """Counts of records dropped on arrival, by reason."""

    malformed: int = 0
    oversized: int = 0
    late: int = 0

    @property
    def total(self) -> int:
        return self.malformed + self.oversized + self.late


@dataclass(frozen=True)
class SampleSpec:
    """What a task's samples look like."""

    shape: tuple[int, ...]
    dtype: str
    classes: int

    @staticmethod
    def from_dataset(data: Dataset) -> SampleSpec:
        if not data.classes:
            raise DataError(f"{data.name}: only samples with class labels can be streamed")
        dtype = data.train.x.numpy().dtype.str[1:]
        if dtype not in _TYPES:
            raise DataError(f"{data.name}: inputs of type {dtype} cannot be streamed; use {' or '.join(_TYPES)}")
        return SampleSpec(data.shape, dtype, len(data.classes))

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's values."""
        return math.prod(self.shape) * int(_TYPES[self.dtype].itemsize)

    @property
    def max_record_bytes(self) -> int:
        """The largest size of a valid record."""
        return self.sample_bytes + _HEADER_BYTES

    @property
    def description(self) -> str:
        """The spec in words, for messages."""
        return f"{self.dtype} values of shape {list(self.shape)} with labels from 0 to {self.classes - 1}"

    def matches_sample(self, sample: StreamSample) -> bool:
        right_kind = sample.x.shape == self.shape and sample.x.dtype == _TYPES[self.dtype]
        return right_kind and 0 <= sample.y < self.classes and bool(np.isfinite(sample.x).all())


class _RecordFrame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    dtype: str
    shape: list[int]
    label: int
    data: bytes
    time: float | None = None


_decoder = msgspec.msgpack.Decoder(_RecordFrame)


def pack_record(sample: StreamSample) -> bytes:
    """Encode a sample as one record."""
    values = np.ascontiguousarray(sample.x)
    dtype = values.dtype.newbyteorder("<").str[1:]
    assert dtype in _TYPES, f"values of type {dtype} cannot be encoded in a record"
    data = values.astype(_TYPES[dtype], copy=False).tobytes()
    return msgspec.msgpack.encode(_RecordFrame(1, dtype, list(values.shape), sample.y, data, sample.time))


def unpack_record(record: bytes, expected: SampleSpec, refusals: RecordRefusals) -> StreamSample | None:
    """Decode a record; returns None and counts it if it does not fit the task."""
    if len(record) > expected.max_record_bytes:
        refusals.oversized += 1
        return None
    sample = _decode_sample(record, expected)
    if sample is None or not expected.matches_sample(sample):
        refusals.malformed += 1
        return None
    return sample


def _decode_sample(record: bytes, expected: SampleSpec) -> StreamSample | None:
    try:
        frame = _decoder.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    matches = (frame.version, frame.dtype, tuple(frame.shape)) == (1, expected.dtype, expected.shape)
    if not matches or len(frame.data) != expected.sample_bytes:
        return None
    values = np.frombuffer(frame.data, _TYPES[frame.dtype]).reshape(expected.shape)
    return StreamSample(values, frame.label, frame.time)
