"""Data sets by name: `cifar10`, `synthetic:classes=4,shape=3x16x16`, `folder:/home/me/pictures,size=64x64`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

# Importing a module registers its data sets.
from potluck.data.cifar import Cifar10Source, Cifar100Source
from potluck.data.dataset_source import Info, Source
from potluck.data.digits import DigitsSource, DrawnDigitsSource
from potluck.data.generated_text import GeneratedLanguageSource, GeneratedTopicsSource
from potluck.data.image_folder import ImageFolderSource
from potluck.data.mnist import FashionMnistSource, MnistSource
from potluck.data.owner_datasets import FemnistSource, SpeechCommandsSource
from potluck.data.samples import Dataset, SampleSet
from potluck.data.synthetic import SyntheticSource
from potluck.data.text_folder import TextFolderSource, TinyShakespeareSource
from potluck.data.token_blocks import TokenBlocks
from potluck.errors import DataError, SettingError
from potluck.settings import decode_settings, part_kinds

__all__ = ["SETS", "Check", "check", "info", "load", "names", "parse"]

SETS: tuple[type[Source], ...] = (
    DrawnDigitsSource,
    DigitsSource,
    SyntheticSource,
    GeneratedLanguageSource,
    GeneratedTopicsSource,
    Cifar10Source,
    Cifar100Source,
    MnistSource,
    FashionMnistSource,
    FemnistSource,
    SpeechCommandsSource,
    TinyShakespeareSource,
    ImageFolderSource,
    TextFolderSource,
)
"""The data sets that come with Potluck, in the order of `potluck data list`."""

_PATHS = {ImageFolderSource.__struct_config__.tag, TextFolderSource.__struct_config__.tag}
_SIDES = {"shape", "size"}
_OPTIONS = re.compile(r"(?:^|,)([a-z_]+=[^,]*)$")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a data set after reading all of it."""

    name: str
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    smallest_class: int
    largest_class: int
    owners: int
    vocabulary: int
    bytes: int


def names() -> tuple[str, ...]:
    return tuple(str(kind.__struct_config__.tag) for kind in SETS)


def parse(name: str | Mapping[str, Any] | Source) -> Source:
    """Return the source for a name with options, a settings table, or a source object."""
    if isinstance(name, Source):
        return name
    if isinstance(name, str):
        kind, colon, rest = name.partition(":")
        name = (
            {"kind": kind, **_parse_options(kind, rest)} if not colon or kind in part_kinds(Source) else {"kind": name}
        )
    return decode_settings(name, Source, "data")


def load(name: str | Mapping[str, Any] | Source, root: Path | None = None, *, augment: bool = False) -> Dataset:
    """Read a data set into memory; `augment` varies its training images in every batch that is given a generator."""
    source = parse(name)
    data = source.read(root)
    if augment and source.augmentation is None:
        raise DataError(f"{source.name}: has no augmentation; remove `augment`")
    return data.with_augmentation(source.augmentation) if augment else data


def info(name: str | Mapping[str, Any] | Source, root: Path | None = None) -> Info:
    """Describe a data set and where its files are, without reading it."""
    return parse(name).info(root)


def check(name: str | Mapping[str, Any] | Source, root: Path | None = None) -> Check:
    """Read the whole set and verify sizes and checksums; DataError says what is wrong."""
    data = load(name, root)
    labelled = data.classes and data.train.has_labels
    counts = np.bincount(data.train.labels, minlength=len(data.classes)) if labelled else np.zeros(1)
    if not len(data.test):
        raise DataError(f"{data.name}: there are no test samples")
    return Check(
        name=data.name, train=len(data.train), test=len(data.test), shape=data.shape, classes=len(data.classes),
        smallest_class=int(counts.min()), largest_class=int(counts.max()), owners=_count_owners(data.train),
        vocabulary=data.vocabulary,         bytes=_stored_bytes(data),
    )  # fmt: skip


def _count_owners(samples: SampleSet) -> int:
    return 0 if samples.owner is None else len(np.unique(samples.owner))


def _stored_bytes(data: Dataset) -> int:
    if isinstance(data.train, TokenBlocks) and isinstance(data.test, TokenBlocks):
        return data.train.tokens.nbytes + data.train.offsets.nbytes + data.test.offsets.nbytes
    return data.sample_bytes * (len(data.train) + len(data.test))


def _parse_options(kind: str, written: str) -> dict[str, Any]:
    """Parse `a=1,b=2x3` into a table; for `folder` and `text` the rest is a path, which may contain commas."""
    options: dict[str, Any] = {}
    while match := _OPTIONS.search(written):
        key, _, value = match[1].partition("=")
        options[key] = _parse_sides(value) if key in _SIDES else _parse_value(value)
        written = written[: match.start()]
    if written and kind in _PATHS:
        options["path"] = written
    elif written:
        raise SettingError("data", f"{written!r} after `{kind}:` is not an option; write options as seed=1")
    return options


def _parse_sides(written: str) -> object:
    """Parse `3x32x32` into a list; anything else is returned unchanged, for the settings to refuse."""
    sides = written.split("x")
    return [int(side) for side in sides] if all(side.isdecimal() for side in sides) else written


def _parse_value(written: str) -> object:
    for number in (int, float):
        try:
            return number(written)
        except ValueError:
            continue
    return written
