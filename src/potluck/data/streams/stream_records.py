"""One sample on the wire of a broker: a MessagePack array, small enough to write by hand on a sensor.

    [version, dtype, shape, label, data, time]
     1        "u1"   [3,32,32] 7   bytes  seconds since 1970, or nil

`data` holds the values in C order, little-endian. Nothing in a record is trusted: the size is looked at before it is
taken apart, type, shape and label must be those of the task, and values must be finite.
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
_ROOM = 256  # bytes of a record beside its values, generously


class StreamSample(NamedTuple):
    """An input as stored, its label, and when it was measured, if that is known."""

    x: npt.NDArray[Any]
    y: int
    time: float | None = None


class RecordRefusals(msgspec.Struct):
    """Records that were dropped on arrival, by reason."""

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
        """The values of one sample."""
        return math.prod(self.shape) * int(_TYPES[self.dtype].itemsize)

    @property
    def max_record_bytes(self) -> int:
        """The largest record that can be right."""
        return self.sample_bytes + _ROOM

    @property
    def description(self) -> str:
        """For people."""
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
    """A sample as one record."""
    values = np.ascontiguousarray(sample.x)
    dtype = values.dtype.newbyteorder("<").str[1:]
    assert dtype in _TYPES, f"values of type {dtype} have no place in a record"
    data = values.astype(_TYPES[dtype], copy=False).tobytes()
    return msgspec.msgpack.encode(_RecordFrame(1, dtype, list(values.shape), sample.y, data, sample.time))


def unpack_record(record: bytes, expected: SampleSpec, refusals: RecordRefusals) -> StreamSample | None:
    """The sample in a record; None, and counted, if it is not one of the task's."""
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
    as_said = (frame.version, frame.dtype, tuple(frame.shape)) == (1, expected.dtype, expected.shape)
    if not as_said or len(frame.data) != expected.sample_bytes:
        return None
    values = np.frombuffer(frame.data, _TYPES[frame.dtype]).reshape(expected.shape)
    return StreamSample(values, frame.label, frame.time)
