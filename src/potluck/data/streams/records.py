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

__all__ = ["Expected", "Refusals", "Sample", "pack", "unpack"]

_TYPES: dict[str, np.dtype[Any]] = {"u1": np.dtype("u1"), "f4": np.dtype("<f4")}
_ROOM = 256  # bytes of a record beside its values, generously


class Sample(NamedTuple):
    """An input as stored, its label, and when it was measured, if that is known."""

    x: npt.NDArray[Any]
    y: int
    time: float | None = None


class Refusals(msgspec.Struct):
    """Records that were dropped on arrival, by reason."""

    malformed: int = 0
    oversized: int = 0
    late: int = 0

    @property
    def total(self) -> int:
        return self.malformed + self.oversized + self.late


@dataclass(frozen=True)
class Expected:
    """What a task's samples look like."""

    shape: tuple[int, ...]
    dtype: str
    classes: int

    @staticmethod
    def of(data: Dataset) -> Expected:
        if not data.classes:
            raise DataError(f"{data.name}: only samples with class labels can be streamed")
        dtype = data.train.x.numpy().dtype.str[1:]
        if dtype not in _TYPES:
            raise DataError(f"{data.name}: inputs of type {dtype} cannot be streamed; use {' or '.join(_TYPES)}")
        return Expected(data.shape, dtype, len(data.classes))

    @property
    def nbytes(self) -> int:
        """The values of one sample."""
        return math.prod(self.shape) * int(_TYPES[self.dtype].itemsize)

    @property
    def most_bytes(self) -> int:
        """The largest record that can be right."""
        return self.nbytes + _ROOM

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.dtype} values of shape {list(self.shape)} with labels from 0 to {self.classes - 1}"

    def fits(self, sample: Sample) -> bool:
        right_kind = sample.x.shape == self.shape and sample.x.dtype == _TYPES[self.dtype]
        return right_kind and 0 <= sample.y < self.classes and bool(np.isfinite(sample.x).all())


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    dtype: str
    shape: list[int]
    label: int
    data: bytes
    time: float | None = None


_decoder = msgspec.msgpack.Decoder(_Frame)


def pack(sample: Sample) -> bytes:
    """A sample as one record."""
    values = np.ascontiguousarray(sample.x)
    dtype = values.dtype.newbyteorder("<").str[1:]
    assert dtype in _TYPES, f"values of type {dtype} have no place in a record"
    data = values.astype(_TYPES[dtype], copy=False).tobytes()
    return msgspec.msgpack.encode(_Frame(1, dtype, list(values.shape), sample.y, data, sample.time))


def unpack(record: bytes, expected: Expected, refusals: Refusals) -> Sample | None:
    """The sample in a record; None, and counted, if it is not one of the task's."""
    if len(record) > expected.most_bytes:
        refusals.oversized += 1
        return None
    sample = _sample(record, expected)
    if sample is None or not expected.fits(sample):
        refusals.malformed += 1
        return None
    return sample


def _sample(record: bytes, expected: Expected) -> Sample | None:
    try:
        frame = _decoder.decode(record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    as_said = (frame.version, frame.dtype, tuple(frame.shape)) == (1, expected.dtype, expected.shape)
    if not as_said or len(frame.data) != expected.nbytes:
        return None
    values = np.frombuffer(frame.data, _TYPES[frame.dtype]).reshape(expected.shape)
    return Sample(values, frame.label, frame.time)
