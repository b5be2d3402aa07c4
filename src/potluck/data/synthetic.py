"""Generated images for tests and benchmarks: a few Gaussian blobs per class, independent noise per sample."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from potluck.data.dataset_files import LARGEST_BYTES
from potluck.data.dataset_source import BUILT_IN, Info, Source
from potluck.data.samples import CropFlip, Dataset, Samples, Scaling
from potluck.settings import doc

__all__ = ["SyntheticSource"]

_CHUNK = 1024
_BLOBS = 3
_GREY, _STEP = 128.0, 24.0
_SCALING = Scaling((_GREY / _STEP,), (1.0,), _STEP)

Floats = npt.NDArray[np.float32]


class SyntheticSource(Source, frozen=True, kw_only=True, tag="synthetic"):
    """Generated samples of any shape: a prototype per class plus noise."""

    classes: Annotated[int, Meta(ge=1), doc("Number of classes.")] = 10
    shape: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], doc("Shape of one sample.")] = (1, 8, 8)
    train: Annotated[int, Meta(ge=1), doc("Number of training samples.")] = 2000
    test: Annotated[int, Meta(ge=1), doc("Number of test samples.")] = 500
    noise: Annotated[float, Meta(ge=0), doc("Standard deviation of the noise; the signal is about 1.")] = 1.0
    owners: Annotated[int, Meta(ge=0), doc("Number of owners among whom the samples are divided; 0 for none.")] = 0
    seed: Annotated[int, Meta(ge=0), doc("Seed of the generated data.")] = 0

    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=1, columns=1, background=_GREY)

    def __post_init__(self) -> None:
        if not self.shape:
            raise ValueError("`shape` needs at least one dimension, such as 1x8x8")
        wanted = (self.train + self.test) * math.prod(self.shape)
        if wanted > LARGEST_BYTES:
            raise ValueError(f"synthetic data of {wanted:,} bytes is more than the {LARGEST_BYTES:,} allowed")

    def read(self, root: Path | None) -> Dataset:
        rng = np.random.default_rng(self.seed)
        prototypes = np.stack([_class_prototype(self.shape, rng) for _ in range(self.classes)])
        train, test = (self._generate_samples(count, prototypes, rng) for count in (self.train, self.test))
        return Dataset(name=self.name, train=train, test=test, classes=self._class_names())

    def info(self, root: Path | None) -> Info:
        return Info(
            name=self.name, about="generated images, one pattern of blobs per class", shape=self.shape,
            classes=self._class_names(), train=self.train, test=self.test, sample_bytes=math.prod(self.shape),
            location=BUILT_IN, get="nothing to get", options=self.option_values(),
        )  # fmt: skip

    def _class_names(self) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.classes))

    def _generate_samples(self, count: int, prototypes: Floats, rng: np.random.Generator) -> Samples:
        y = rng.permutation(np.arange(count) % self.classes)
        x = np.empty((count, *self.shape), np.uint8)
        for start in range(0, count, _CHUNK):
            signal = prototypes[y[start : start + _CHUNK]]
            values = signal + np.float32(self.noise) * rng.standard_normal(signal.shape, np.float32)
            x[start : start + _CHUNK] = np.clip(_GREY + _STEP * values, 0, 255)
        owner = rng.integers(0, self.owners, count) if self.owners else None
        return Samples(torch.from_numpy(x), torch.from_numpy(y), owner=owner, scaling=_SCALING)


def _class_prototype(shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """A few round blobs of random position, width and sign per channel; plain noise if the shape is not an image."""
    if len(shape) != 3:
        return rng.standard_normal(shape, np.float32)
    channels, height, width = shape
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.zeros(shape)
    for _ in range(_BLOBS):
        row, column = rng.uniform(0, height), rng.uniform(0, width)
        spread = rng.uniform(0.1, 0.25) * max(height, width)
        blob = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * spread**2))
        image += rng.normal(0, 2, (channels, 1, 1)) * blob
    return image.astype(np.float32)
