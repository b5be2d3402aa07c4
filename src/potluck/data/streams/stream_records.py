"""Encodes one sample as a broker record: a MessagePack array simple enough to write on a sensor.

    [version, dtype, shape, label, data, time]
     1        "u1"   [3,32,32] 7   bytes  seconds since 1970, or nil

`data` holds the values in C order, little-endian. A sample that is more than one input with a class label is a list of
arrays, those of its inputs and then those of its targets, in the order of PyTorch's pytree:

    [2, [[dtype, shape, data], ...], time]

Nothing in a record is trusted: its size is checked before decoding, its types, shapes and label must fit the task, and
its values must be finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from potluck.data.samples import Dataset, SampleSet
from potluck.errors import DataError

__all__ = ["RecordRefusals", "SampleSpec", "StreamSample", "ValueSpec", "pack_record", "read_sample", "unpack_record"]

Array = npt.NDArray[Any]

_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name if name[1] == "1" else f"<{name}")
    for name in ("b1", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
_HEADER_BYTES = 256  # more than enough for everything but the values
_LEAF = tree_flatten(0)[1]


class StreamSample(NamedTuple):
    """An input as stored, its label or targets, and when it was measured, if known.

    Inputs and targets are arrays or nested tuples, lists and dicts of them. The sample of a replayed data set has its
    `row` there instead of the values.
    """

    x: Any
    y: Any
    time: float | None = None
    row: int | None = None


class RecordRefusals(msgspec.Struct):
    """Counts of records dropped on arrival, by reason."""

    malformed: int = 0
    oversized: int = 0
    late: int = 0

    @property
    def total(self) -> int:
        return self.malformed + self.oversized + self.late


class ValueSpec(NamedTuple):
    """The shape and dtype that an array must have."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(_TYPES[self.dtype].itemsize)

    def matches(self, array: Any, rows: tuple[int, ...] = ()) -> bool:
        """Whether an array has this type and shape (after `rows`), and finite values."""
        if not isinstance(array, np.ndarray) or array.shape != (*rows, *self.shape):
            return False
        return array.dtype == _TYPES[self.dtype] and (array.dtype.kind != "f" or bool(np.isfinite(array).all()))


@dataclass(frozen=True)
class SampleSpec:
    """What a task's samples look like; `classes` is 0 where targets are not class labels."""

    inputs: tuple[ValueSpec, ...]
    targets: tuple[ValueSpec, ...] = (ValueSpec((), "i8"),)
    classes: int = 0
    input_tree: TreeSpec = _LEAF
    target_tree: TreeSpec = _LEAF

    @staticmethod
    def labelled(shape: tuple[int, ...], dtype: str, classes: int) -> SampleSpec:
        """Samples of one input with a class label."""
        return SampleSpec((ValueSpec(shape, dtype),), classes=classes)

    @staticmethod
    def from_dataset(data: Dataset) -> SampleSpec:
        inputs, targets = data.train.stored_batch(np.arange(1))
        (input_specs, input_tree), (target_specs, target_tree) = (_array_specs(data.name, t) for t in (inputs, targets))
        classes = len(data.classes) if target_specs == (ValueSpec((), "i8"),) else 0
        return SampleSpec(input_specs, target_specs, classes, input_tree, target_tree)

    @property
    def is_labelled(self) -> bool:
        """Whether a sample is one input with a class label."""
        return self.classes > 0 and self.input_tree.is_leaf()

    @property
    def arrays(self) -> tuple[ValueSpec, ...]:
        return (*self.inputs, *self.targets)

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample's values."""
        return sum(spec.nbytes for spec in (self.inputs if self.is_labelled else self.arrays))

    @property
    def max_record_bytes(self) -> int:
        """The largest size of a valid record."""
        return self.sample_bytes + _HEADER_BYTES * (1 if self.is_labelled else len(self.arrays))

    @property
    def description(self) -> str:
        """The spec in words, for messages."""
        if self.is_labelled:
            (spec,) = self.inputs
            return f"{spec.dtype} values of shape {list(spec.shape)} with labels from 0 to {self.classes - 1}"
        return "arrays of " + ", ".join(f"{spec.dtype} {list(spec.shape)}" for spec in self.arrays)

    def matches_sample(self, sample: StreamSample) -> bool:
        if self.is_labelled:
            return self.inputs[0].matches(sample.x) and isinstance(sample.y, int) and 0 <= sample.y < self.classes
        (x, x_tree), (y, y_tree) = tree_flatten(sample.x), tree_flatten(sample.y)
        if (x_tree, y_tree) != (self.input_tree, self.target_tree):
            return False
        return all(spec.matches(np.asarray(value)) for spec, value in zip(self.arrays, (*x, *y), strict=True))

    def batch_refusal(self, arrays: Sequence[Any]) -> str | None:
        """Why these arrays are not a batch of such samples, inputs first; None if they are."""
        if len(arrays) != len(self.arrays) or not all(isinstance(array, np.ndarray) for array in arrays):
            return "it does not consist of inputs and targets"
        rows, pairs = arrays[-1].shape[:1], list(zip(arrays, self.arrays, strict=True))
        if not rows or not all(array.shape == (*rows, *spec.shape) for array, spec in pairs):
            return f"arrays of shape {[array.shape for array in arrays]} do not fit samples of {self.description}"
        if not all(array.dtype == _TYPES[spec.dtype] for array, spec in pairs):
            return f"arrays of {[str(array.dtype) for array in arrays]} do not fit samples of {self.description}"
        if not all(spec.matches(array, rows) for array, spec in pairs):
            return "its values are not all finite"
        labels = arrays[-1]
        if self.classes and len(labels) and not 0 <= labels.min() <= labels.max() < self.classes:
            return f"its labels go from {labels.min()} to {labels.max()}, of {self.classes} classes"
        return None

    def unflatten(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """Inputs and targets from the arrays of `batch_refusal`, or of a record."""
        count = len(self.inputs)
        inputs = tree_unflatten(list(arrays[:count]), self.input_tree)
        return inputs, tree_unflatten(list(arrays[count:]), self.target_tree)


def read_sample(samples: SampleSet, row: int) -> StreamSample:
    """One sample of a data set, by value."""
    x, y = (tree_map_only(Tensor, lambda leaf: leaf[0].numpy(), tree) for tree in samples.stored_batch(np.array([row])))
    is_label = isinstance(y, np.ndarray | np.generic) and y.ndim == 0 and y.dtype == np.int64
    return StreamSample(x, int(y) if is_label else y)


def _array_specs(name: str, batch: Any) -> tuple[tuple[ValueSpec, ...], TreeSpec]:
    leaves, tree = tree_flatten(batch)
    specs = []
    for leaf in leaves:
        dtype = "" if leaf.dtype == torch.bfloat16 else leaf.numpy().dtype.str[1:]
        if dtype not in _TYPES:
            raise DataError(f"{name}: values of type {leaf.dtype} cannot be streamed; use one of {', '.join(_TYPES)}")
        specs.append(ValueSpec(tuple(leaf.shape[1:]), dtype))
    return tuple(specs), tree


class _RecordFrame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    dtype: str
    shape: list[int]
    label: int
    data: bytes
    time: float | None = None


class _ArrayFrame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data: bytes


class _NestedFrame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: int
    arrays: list[_ArrayFrame]
    time: float | None = None


_decoder = msgspec.msgpack.Decoder(_RecordFrame)
_nested_decoder = msgspec.msgpack.Decoder(_NestedFrame)


def pack_record(sample: StreamSample) -> bytes:
    """Encode a sample as one record."""
    if isinstance(sample.y, int) and isinstance(sample.x, np.ndarray):
        frame = _array_frame(sample.x)
        return msgspec.msgpack.encode(_RecordFrame(1, frame.dtype, frame.shape, sample.y, frame.data, sample.time))
    arrays = [*tree_flatten(sample.x)[0], *tree_flatten(sample.y)[0]]
    return msgspec.msgpack.encode(_NestedFrame(2, [_array_frame(np.asarray(array)) for array in arrays], sample.time))


def _array_frame(array: Array) -> _ArrayFrame:
    values = np.ascontiguousarray(array).reshape(array.shape)
    dtype = values.dtype.newbyteorder("<").str[1:]
    assert dtype in _TYPES, f"values of type {dtype} cannot be encoded in a record"
    return _ArrayFrame(dtype, list(values.shape), values.astype(_TYPES[dtype], copy=False).tobytes())


def unpack_record(record: bytes, expected: SampleSpec, refusals: RecordRefusals) -> StreamSample | None:
    """Decode a record; returns None and counts it if it does not fit the task."""
    if len(record) > expected.max_record_bytes:
        refusals.oversized += 1
        return None
    try:
        sample = _decode_labelled(record, expected) if expected.is_labelled else _decode_nested(record, expected)
    except (msgspec.DecodeError, UnicodeDecodeError):
        sample = None
    if sample is None or not expected.matches_sample(sample):
        refusals.malformed += 1
        return None
    return sample


def _decode_labelled(record: bytes, expected: SampleSpec) -> StreamSample | None:
    frame = _decoder.decode(record)
    values = _decode_array(_ArrayFrame(frame.dtype, frame.shape, frame.data), expected.inputs[0])
    return None if frame.version != 1 or values is None else StreamSample(values, frame.label, frame.time)


def _decode_nested(record: bytes, expected: SampleSpec) -> StreamSample | None:
    frame = _nested_decoder.decode(record)
    if frame.version != 2 or len(frame.arrays) != len(expected.arrays):
        return None
    values = [_decode_array(*pair) for pair in zip(frame.arrays, expected.arrays, strict=True)]
    if any(array is None for array in values):
        return None
    return StreamSample(*expected.unflatten(values), frame.time)


def _decode_array(frame: _ArrayFrame, expected: ValueSpec) -> Array | None:
    if (frame.dtype, tuple(frame.shape)) != (expected.dtype, expected.shape) or len(frame.data) != expected.nbytes:
        return None
    return np.frombuffer(frame.data, _TYPES[frame.dtype]).reshape(expected.shape)
