"""Data sets whose samples have owners, one .npz file each: FEMNIST by writer, speech commands by speaker.

x (N, height, width) uint8, y (N,), an owner number (N,), split (N,); and a list of the owners' names.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from potluck.data.dataset_files import ColumnSpec, read_npz
from potluck.data.dataset_source import PublishedSource
from potluck.data.samples import CropFlip, Dataset, Indices, Samples, Scaling
from potluck.errors import DataError
from potluck.settings import doc

__all__ = ["FemnistSource", "SpeechCommandsSource"]

_INTEGER = "iu"


class _OwnerSource(PublishedSource, frozen=True, kw_only=True):
    owner: ClassVar[str]
    """Name of the array with each sample's owner; the array with its plural holds the owners' names."""
    labels: ClassVar[int]
    """Number of labels in the file."""

    def read(self, root: Path | None) -> Dataset:
        path = self.find_dataset_folder(root) / self.marker
        arrays = read_npz(path, self._array_specs())
        self._check_range(path, "y", arrays["y"], self.labels)
        self._check_range(path, self.owner, arrays[self.owner], len(arrays[f"{self.owner}s"]))
        train, test = (self._select_samples(arrays, number) for number in (0, self._test_split()))
        return Dataset(name=self.name, train=train, test=test, classes=self.class_names())

    def count_samples(self, folder: Path | None) -> tuple[int, int]:
        if folder is None:
            return self.train, self.test
        split = read_npz(folder / self.marker, {"split": ColumnSpec(_INTEGER)})["split"]
        return int(np.sum(split == 0)), int(np.sum(split == self._test_split()))

    def _array_specs(self) -> dict[str, ColumnSpec]:
        return {
            "x": ColumnSpec("u", self.shape[1:]),
            "y": ColumnSpec(_INTEGER),
            self.owner: ColumnSpec(_INTEGER),
            "split": ColumnSpec(_INTEGER),
            f"{self.owner}s": ColumnSpec("U", per_sample=False),
        }

    def _test_split(self) -> int:
        return 1

    def _map_labels(self, y: Indices) -> Indices:
        return y

    def _select_samples(self, arrays: dict[str, npt.NDArray[np.generic]], split: int) -> Samples:
        chosen = np.flatnonzero(arrays["split"] == split)
        x = torch.from_numpy(arrays["x"][chosen].astype(np.uint8, copy=False)).unsqueeze(1)
        y = torch.from_numpy(self._map_labels(arrays["y"][chosen].astype(np.int64)))
        return Samples(x, y, owner=arrays[self.owner][chosen].astype(np.int64), scaling=self.scaling)

    def _check_range(self, path: Path, name: str, column: npt.NDArray[np.generic], limit: int) -> None:
        values = cast(npt.NDArray[np.integer], column)
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < limit:
            raise DataError(f"{path}: {name} goes from {values.min()} to {values.max()}, expected 0 to {limit - 1}")


class FemnistSource(_OwnerSource, frozen=True, kw_only=True, tag="femnist"):
    """Handwritten digits and letters, by writer (LEAF)."""

    about: ClassVar[str] = "handwritten digits and letters by writer (LEAF, from NIST Special Database 19)"
    get: ClassVar[str] = (
        "build femnist.npz there from LEAF's FEMNIST (github.com/TalwalkarLab/leaf): x (N, 28, 28) uint8 with 255 for"
        " paper, y 0-61 (0-9, A-Z, a-z), writer (N,), split (N,) 0 train 1 test, writers (names)"
    )
    folders: ClassVar[tuple[str, ...]] = ("femnist",)
    marker: ClassVar[str] = "femnist.npz"
    owner: ClassVar[str] = "writer"
    labels: ClassVar[int] = 62
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    train: ClassVar[int] = 41_193
    test: ClassVar[int] = 11_960
    scaling: ClassVar[Scaling] = Scaling((0.9615,), (0.1642,), 255.0)
    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=2, columns=2, flip=False, background=255)

    def class_names(self) -> tuple[str, ...]:
        return tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)


_SPLITS = {"words": 2, "validation": 1, "official": 3}
_WORDS = ("down", "go", "left", "no", "off", "on", "one", "right", "stop", "three", "two", "up", "yes")
_OFFICIAL = ("_silence_", "_unknown_", "down", "go", "left", "no", "off", "on", "right", "stop", "up", "yes")
_STORED = ("_silence_", "_unknown_", *_WORDS)


class SpeechCommandsSource(_OwnerSource, frozen=True, kw_only=True, tag="speech-commands"):
    """Spoken words as log-mel spectrograms (49 frames of 40 bands, dB = 1.5 v - 60), by speaker.

    `test_clips` selects the test set. The training set is the same 13 words in each case.
    - `words`: the publisher's test clips of these 13 words (version 0.01); 13 classes.
    - `validation`: the publisher's validation clips of the 13 words, for tuning; 13 classes.
    - `official`: the 12-class test set of version 0.02. `one`, `two` and `three` are trained as
      `_unknown_`; `_silence_`, 1 clip in 12, is not trained, so accuracy is at most 92 %.
    """

    test_clips: Annotated[
        Literal["words", "validation", "official"],
        doc("Test on the 13 words' test clips, on their validation clips, or on the official 12-class set."),
    ] = "words"

    about: ClassVar[str] = "spoken words as log-mel spectrograms, by speaker (Warden 2018, CC BY 4.0)"
    get: ClassVar[str] = (
        "build kws.npz there from Google's Speech Commands (arXiv 1804.03209): x (N, 49, 40) uint8 log-mel with"
        " dB = 1.5 x - 60, y into words, words (15 names), speaker (N,), split (N,) 0 train 1 validation 2 test"
        " 3 official test, speakers (names)"
    )
    folders: ClassVar[tuple[str, ...]] = ("kws", "speech-commands")
    marker: ClassVar[str] = "kws.npz"
    owner: ClassVar[str] = "speaker"
    labels: ClassVar[int] = len(_STORED)
    shape: ClassVar[tuple[int, ...]] = (1, 49, 40)
    train: ClassVar[int] = 24_143
    test: ClassVar[int] = 3_346
    scaling: ClassVar[Scaling] = Scaling((24.44,), (13.92,), 1.0)
    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=4, columns=0, flip=False)

    def class_names(self) -> tuple[str, ...]:
        return _OFFICIAL if self.test_clips == "official" else _WORDS

    def read(self, root: Path | None) -> Dataset:
        path = self.find_dataset_folder(root) / self.marker
        words = tuple(str(word) for word in read_npz(path, {"words": ColumnSpec("U", per_sample=False)})["words"])
        if words != _STORED:
            raise DataError(f"{path}: words are {', '.join(words)}; expected {', '.join(_STORED)}")
        return super().read(root)

    def _test_split(self) -> int:
        return _SPLITS[self.test_clips]

    def _map_labels(self, y: Indices) -> Indices:
        """Map the file's 15 words to the classes in use; any other word becomes `_unknown_`, or -1."""
        names = self.class_names()
        other = names.index("_unknown_") if "_unknown_" in names else -1
        table = np.array([names.index(word) if word in names else other for word in _STORED])
        return table[y]
