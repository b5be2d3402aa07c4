"""Reads published data files with their sizes and checksums verified; nothing in them is ever executed."""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from potluck.errors import DataError

__all__ = ["LARGEST_BYTES", "Array", "ColumnSpec", "PublishedFile", "read_idx", "read_npz", "read_published_file"]

LARGEST_BYTES = 4 * 2**30
"""The largest data set that is read into memory."""

Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PublishedFile:
    """A published file; its size and digest are those of the uncompressed content."""

    name: str
    size: int
    digest: str
    """`algorithm:hex`."""


@dataclass(frozen=True)
class ColumnSpec:
    """What an array of an .npz must look like; `kinds` are NumPy dtype kinds, `shape` is that of one row."""

    kinds: str
    shape: tuple[int, ...] = ()
    per_sample: bool = True
    """Whether it has one row per sample."""


def read_published_file(folder: Path, file: PublishedFile) -> Array:
    """The content of `file`, plain or gzipped, after comparing it with what was published."""
    path = folder / file.name
    packed = folder / f"{file.name}.gz"
    if not path.is_file() and not packed.is_file():
        raise DataError(f"{path} is missing beside the other files of its set; unpack the set again")
    content = _read_plain(path, file.size) if path.is_file() else _read_gzipped(packed, file.size)
    algorithm, _, expected = file.digest.partition(":")
    if hashlib.new(algorithm, content, usedforsecurity=False).hexdigest() != expected:
        raise DataError(f"{path} is not the published file (its {algorithm} differs); download it again")
    return np.frombuffer(content, np.uint8)


def read_idx(folder: Path, file: PublishedFile, shape: tuple[int, ...]) -> Array:
    """An idx file of bytes: two zeros, type 8, the number of dimensions, each dimension, then the values."""
    content = read_published_file(folder, file)
    header = np.concatenate([np.array([0x0800 + len(shape)]), np.array(shape)]).astype(">i4").tobytes()
    if content[: len(header)].tobytes() != header:
        raise DataError(f"{folder / file.name} is not an idx file of {' x '.join(map(str, shape))} bytes")
    return content[len(header) :].reshape(shape)


def read_npz(path: Path, columns: Mapping[str, ColumnSpec]) -> dict[str, npt.NDArray[np.generic]]:
    """The named arrays of an .npz, each of the kind and shape asked for, without pickle."""
    try:
        with zipfile.ZipFile(path) as members:
            claimed = sum(member.file_size for member in members.infolist())
        if claimed > LARGEST_BYTES:
            raise DataError(f"{path} claims to unpack to {claimed:,} bytes, more than the {LARGEST_BYTES:,} allowed")
        with np.load(path, allow_pickle=False) as arrays:
            loaded = {name: arrays[name] for name in columns if name in arrays}
    except (ValueError, EOFError, OSError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise error if isinstance(error, DataError) else DataError(f"{path} cannot be read ({error})") from error
    for name, column in columns.items():
        _check_array(path, name, loaded.get(name), column)
    lengths = {name: len(loaded[name]) for name, column in columns.items() if column.per_sample}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{path}: arrays of one set differ in length: {lengths}")
    return loaded


def _read_plain(path: Path, size: int) -> bytes:
    actual = path.stat().st_size
    if actual != size:
        raise DataError(f"{path} has {actual:,} bytes instead of {size:,}; it is truncated or not the published file")
    return path.read_bytes()


def _read_gzipped(path: Path, size: int) -> bytes:
    try:
        with gzip.open(path) as stream:
            content = stream.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked ({error}); it is truncated or not the published file") from error
    if len(content) != size:
        relation = "more than" if len(content) > size else f"{len(content):,} bytes instead of"
        raise DataError(f"{path} unpacks to {relation} {size:,} bytes; it is truncated or not the published file")
    return content


def _check_array(path: Path, name: str, array: npt.NDArray[np.generic] | None, column: ColumnSpec) -> None:
    if array is None:
        raise DataError(f"{path} holds no array {name!r}")
    if array.dtype.kind not in column.kinds or array.shape[1:] != column.shape or array.ndim == 0:
        wanted = f"({', '.join(['N', *map(str, column.shape)])}) of kind {column.kinds!r}"
        raise DataError(f"{path}: array {name!r} is {array.dtype} {array.shape}, expected {wanted}")
