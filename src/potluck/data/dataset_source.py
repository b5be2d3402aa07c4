"""Describes a data set before it is read: its settings, its figures, its folder or how to get it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from potluck.data.dataset_files import PublishedFile
from potluck.data.samples import CropFlip, Dataset, Scaling
from potluck.errors import DataError
from potluck.settings import Part

__all__ = ["BUILT_IN", "Info", "PublishedSource", "Source", "data_roots", "find_folder", "search_folder"]


BUILT_IN = "built in"

VARIABLE = "POTLUCK_DATA"


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a data set, known without reading it."""

    name: str
    about: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    train: int
    test: int
    sample_bytes: int
    location: str | None = msgspec.field(name="place")
    """`built in`, the folder that holds it, or None where it is missing."""
    get: str
    """How to get it."""
    options: dict[str, Any]
    vocabulary: int = 0
    """Number of tokens where the inputs are text, else 0."""
    entropy: float | None = None
    """Entropy rate of a generated language, in nats per token."""
    loss_floor: float | None = None
    """The lowest expected cross-entropy that a model can have on the samples, in nats, where it is known."""
    accuracy_ceiling: float | None = None
    """The highest expected accuracy that a model can have on the test samples, where it is known."""


class Source(Part, frozen=True, kw_only=True):
    """A data set by name with its options; to add one, subclass this with a `tag`."""

    augmentation: ClassVar[CropFlip | None] = None

    def read(self, root: Path | None) -> Dataset:
        raise NotImplementedError

    def info(self, root: Path | None) -> Info:
        raise NotImplementedError

    @property
    def name(self) -> str:
        return str(self.__struct_config__.tag)

    def option_values(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__struct_fields__}


class PublishedSource(Source, frozen=True, kw_only=True):
    """A data set published as files; `folders` are where they may be below a root."""

    about: ClassVar[str]
    get: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    marker: ClassVar[str]
    """The file that identifies the folder."""
    files: ClassVar[tuple[PublishedFile, ...]] = ()
    """The files whose size and checksum are verified."""
    scaling: ClassVar[Scaling]
    shape: ClassVar[tuple[int, ...]]
    train: ClassVar[int]
    test: ClassVar[int]

    def class_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def count_samples(self, folder: Path | None) -> tuple[int, int]:
        """Return the number of training and test samples; `folder` is None if the set is missing."""
        return self.train, self.test

    def find_dataset_folder(self, root: Path | None) -> Path:
        return find_folder(self.name, self.folders, self.marker, root, self.get)

    def info(self, root: Path | None) -> Info:
        folder = search_folder(self.folders, self.marker, root)
        train, test = self.count_samples(folder)
        return Info(
            name=self.name, about=self.about, shape=self.shape, classes=self.class_names(), train=train, test=test,
            sample_bytes=math.prod(self.shape), location=None if folder is None else str(folder), get=self.get,
            options=self.option_values(),
        )  # fmt: skip


def data_roots(root: Path | None) -> tuple[Path, ...]:
    """The folders to search, in order: the given one, $POTLUCK_DATA, the cache."""
    named = os.environ.get(VARIABLE)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "potluck" / "data"
    candidates = [root, Path(named) if named else None, cache]
    return tuple(dict.fromkeys(root_folder.expanduser() for root_folder in candidates if root_folder is not None))


def search_folder(folders: tuple[str, ...], first: str, root: Path | None) -> Path | None:
    """The first folder that holds the file `first`, plain or gzipped."""
    for folder in _candidate_folders(folders, root):
        if (folder / first).is_file() or (folder / f"{first}.gz").is_file():
            return folder
    return None


def find_folder(name: str, folders: tuple[str, ...], first: str, root: Path | None, get: str) -> Path:
    """Return the set's folder; DataError names the paths tried and how to get the data."""
    folder = search_folder(folders, first, root)
    if folder is None:
        tried = ", ".join(str(candidate / first) for candidate in _candidate_folders(folders, root))
        raise DataError(
            f"{name} was not found (tried {tried}); {get}, or point to another folder with --data DIR or ${VARIABLE}"
        )
    return folder


def _candidate_folders(folders: tuple[str, ...], root: Path | None) -> Iterator[Path]:
    """Relative folders below each root first, absolute ones last."""
    for root_folder in data_roots(root):
        yield from (root_folder / folder for folder in folders if not Path(folder).is_absolute())
    yield from (Path(folder) for folder in folders if Path(folder).is_absolute())
