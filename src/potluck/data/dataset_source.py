"""Describes a data set before it is read: its settings, where its files are, its figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from potluck.data.augmentation import CropFlip
from potluck.data.dataset_files import PublishedFile
from potluck.data.dataset_paths import find_folder, search_folder
from potluck.data.samples import Dataset, Scaling
from potluck.settings import Part

__all__ = ["BUILT_IN", "Info", "PublishedSource", "Source"]

BUILT_IN = "built in"


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a data set, known without reading it."""

    name: str
    about: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    train: int
    test: int
    sample_bytes: int
    place: str | None
    """`built in`, the folder that holds it, or None where it is missing."""
    get: str
    """How to get it."""
    options: dict[str, Any]


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
            sample_bytes=math.prod(self.shape), place=None if folder is None else str(folder), get=self.get,
            options=self.option_values(),
        )  # fmt: skip
