"""Digits: scikit-learn's 1,797 scans of 8 × 8 pixels, and the embedded default, drawn as pen strokes from a seed.

The drawn digits need nothing but NumPy, so the base install can run the demo and every example job. The same options
always give the same samples.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from msgspec import Meta

from potluck.data.data_splits import split_holdout
from potluck.data.dataset_source import BUILT_IN, Info, Source
from potluck.data.samples import CropFlip, Dataset, Samples, Scaling
from potluck.errors import DataError
from potluck.settings import doc

__all__ = ["DigitsSource", "DrawnDigitsSource"]


_TEST = 360
_SCALING = Scaling((0.3058,), (0.3766,), 16.0)
_INSTALL = "pip install 'potluck[digits]'"

_SIDE = 8
_CHUNK = 512
_STROKE_SCALING = Scaling((0.3202,), (0.3457,), 255.0)
# One pen stroke per digit: corners in a unit square, x to the right and y down.
_STROKES: tuple[tuple[tuple[float, float], ...], ...] = (
    ((0.5, 0.08), (0.28, 0.2), (0.2, 0.5), (0.28, 0.8), (0.5, 0.92), (0.72, 0.8), (0.8, 0.5), (0.72, 0.2), (0.5, 0.08)),
    ((0.32, 0.28), (0.55, 0.1), (0.55, 0.9)),
    ((0.2, 0.3), (0.32, 0.13), (0.56, 0.1), (0.75, 0.25), (0.68, 0.47), (0.2, 0.9), (0.8, 0.9)),
    ((0.2, 0.14), (0.52, 0.1), (0.75, 0.27), (0.45, 0.48), (0.74, 0.57), (0.78, 0.75), (0.54, 0.91), (0.2, 0.84)),
    ((0.62, 0.9), (0.62, 0.1), (0.18, 0.62), (0.84, 0.62)),
    ((0.76, 0.1), (0.28, 0.1), (0.25, 0.45), (0.55, 0.42), (0.78, 0.6), (0.72, 0.83), (0.45, 0.92), (0.2, 0.82)),
    ((0.68, 0.1), (0.38, 0.3), (0.22, 0.62), (0.32, 0.86), (0.55, 0.92), (0.77, 0.75), (0.66, 0.54), (0.25, 0.64)),
    ((0.2, 0.1), (0.8, 0.1), (0.42, 0.9)),
    (
        (0.5, 0.48), (0.28, 0.32), (0.5, 0.08), (0.72, 0.32), (0.5, 0.48), (0.24, 0.7), (0.5, 0.93), (0.76, 0.7),
        (0.5, 0.48),
    ),
    ((0.32, 0.9), (0.62, 0.7), (0.78, 0.38), (0.68, 0.14), (0.45, 0.08), (0.23, 0.25), (0.34, 0.46), (0.75, 0.36)),
)  # fmt: skip
Floats = npt.NDArray[np.float64]


class DigitsSource(Source, frozen=True, kw_only=True, tag="digits"):
    """1,797 handwritten digits of 8 × 8 pixels, embedded (scikit-learn)."""

    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=1, columns=1, flip=False)

    def read(self, root: Path | None) -> Dataset:
        images, labels = _read_digits()
        x = torch.from_numpy(images.astype(np.uint8)).view(-1, 1, 8, 8)
        y = torch.from_numpy(labels)
        train, test = (Samples(x[part], y[part], scaling=_SCALING) for part in split_holdout(labels, _TEST))
        return Dataset(name=self.name, train=train, test=test, classes=tuple("0123456789"))

    def info(self, root: Path | None) -> Info:
        return Info(
            name=self.name, about="handwritten digits embedded in scikit-learn (Alpaydin, Kaynak 1998)",
            shape=(1, 8, 8), classes=tuple("0123456789"), train=1797 - _TEST, test=_TEST, sample_bytes=64,
            location=BUILT_IN, get=_INSTALL, options=self.option_values(),
        )  # fmt: skip


def _read_digits() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Read scikit-learn's data file directly, since importing the library takes over a second."""
    spec = importlib.util.find_spec("sklearn")
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders if (path := folder / "datasets" / "data" / "digits.csv.gz").exists()]
    if files:
        with gzip.open(files[0], "rt") as lines:
            table = np.array([line.split(",") for line in lines], dtype=np.float64)
        return table[:, :-1], table[:, -1].astype(np.int64)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            f"the digits data set needs scikit-learn: {_INSTALL} (or use drawn-digits, which needs nothing)"
        ) from error
    images, labels = load_digits(return_X_y=True)
    return images, labels.astype(np.int64)


class DrawnDigitsSource(Source, frozen=True, kw_only=True, tag="drawn-digits"):
    """Pictures of 8 × 8 in 10 classes, generated from a seed; embedded, needs no download."""

    train: Annotated[int, Meta(ge=1, le=1_000_000), doc("Number of training samples.")] = 2000
    test: Annotated[int, Meta(ge=1, le=1_000_000), doc("Number of test samples.")] = 500
    noise: Annotated[float, Meta(ge=0), doc("Standard deviation of a pixel's noise, relative to a full stroke.")] = 0.1
    seed: Annotated[int, Meta(ge=0), doc("Seed of the samples, independent of the job's.")] = 0

    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=1, columns=1, flip=False)

    def read(self, root: Path | None) -> Dataset:
        rng = np.random.default_rng(self.seed)
        train, test = (self._draw_samples(count, rng) for count in (self.train, self.test))
        return Dataset(name=self.name, train=train, test=test, classes=tuple("0123456789"))

    def info(self, root: Path | None) -> Info:
        return Info(
            name=self.name, about="digits drawn as pen strokes, generated from a seed", shape=(1, _SIDE, _SIDE),
            classes=tuple("0123456789"), train=self.train, test=self.test, sample_bytes=_SIDE * _SIDE,
            location=BUILT_IN, get="nothing to get", options=self.option_values(),
        )  # fmt: skip

    def _draw_samples(self, count: int, rng: np.random.Generator) -> Samples:
        y = rng.permutation(np.arange(count) % 10)
        x = np.empty((count, 1, _SIDE, _SIDE), np.uint8)
        for start in range(0, count, _CHUNK):
            labels = y[start : start + _CHUNK]
            for digit in range(10):
                rows = start + np.flatnonzero(labels == digit)
                ink = _draw_digit(np.array(_STROKES[digit]), len(rows), rng)
                ink += self.noise * rng.standard_normal(ink.shape)
                x[rows, 0] = np.clip(255 * ink, 0, 255)
        return Samples(torch.from_numpy(x), torch.from_numpy(y), scaling=_STROKE_SCALING)


def _draw_digit(stroke: Floats, count: int, rng: np.random.Generator) -> Floats:
    """`count` pictures of one digit: the ink at a pixel falls with its distance to the nearest line of the stroke."""
    corners = stroke - 0.5 + 0.03 * rng.standard_normal((count, *stroke.shape))
    angle, slant = rng.uniform(-0.25, 0.25, count), rng.uniform(-0.25, 0.25, count)
    width, height = rng.uniform(0.75, 1.05, count), rng.uniform(0.8, 1.05, count)
    cos, sin = np.cos(angle), np.sin(angle)
    transform = np.array([[width * cos, -height * sin + slant], [width * sin, height * cos]])
    corners = np.einsum("xyn,nky->nkx", transform, corners) + 0.5 + rng.uniform(-0.08, 0.08, (count, 1, 2))
    pen = rng.uniform(0.05, 0.085, (count, 1))
    centres = (np.mgrid[0:_SIDE, 0:_SIDE].reshape(2, -1).T[:, ::-1] + 0.5) / _SIDE
    begin, line = corners[:, :-1], np.diff(corners, axis=1)
    towards = centres[None, :, None] - begin[:, None]  # sample, pixel, line, axis
    along = np.clip((towards * line[:, None]).sum(-1) / np.maximum((line**2).sum(-1), 1e-9)[:, None], 0, 1)
    nearest = np.linalg.norm(towards - along[..., None] * line[:, None], axis=-1).min(axis=-1)
    ink: Floats = np.exp(-0.5 * (nearest / pen) ** 2)
    return ink.reshape(count, _SIDE, _SIDE)
