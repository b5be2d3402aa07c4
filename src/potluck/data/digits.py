"""The 1,797 handwritten digits of 8 × 8 pixels that come with scikit-learn: real data without a download."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from potluck.data.augmentation import CropFlip
from potluck.data.dataset_source import BUILT_IN, Info, Source
from potluck.data.holdout_split import split_holdout
from potluck.data.samples import Dataset, Samples, Scaling
from potluck.errors import DataError

__all__ = ["DigitsSource"]

_TEST = 360
_SCALING = Scaling((0.3058,), (0.3766,), 16.0)
_INSTALL = "pip install 'potluck[digits]'"


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
            place=BUILT_IN, get=_INSTALL, options=self.option_values(),
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
