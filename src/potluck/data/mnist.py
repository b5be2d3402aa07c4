"""MNIST and Fashion-MNIST: four idx files, plain or gzipped."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from potluck.data.dataset_files import PublishedFile, read_idx
from potluck.data.dataset_source import PublishedSource
from potluck.data.samples import CropFlip, Dataset, Samples, Scaling

__all__ = ["FashionMnistSource", "MnistSource"]


class _IdxSource(PublishedSource, frozen=True, kw_only=True):
    """`files`: training images and labels, test images and labels."""

    marker: ClassVar[str] = "train-images-idx3-ubyte"
    shape: ClassVar[tuple[int, ...]] = (1, 28, 28)
    train: ClassVar[int] = 60_000
    test: ClassVar[int] = 10_000

    def read(self, root: Path | None) -> Dataset:
        folder = self.find_dataset_folder(root)
        train_images, train_labels, test_images, test_labels = self.files
        train = self._read_samples(folder, train_images, train_labels, self.train)
        test = self._read_samples(folder, test_images, test_labels, self.test)
        return Dataset(name=self.name, train=train, test=test, classes=self.class_names())

    def _read_samples(self, folder: Path, images: PublishedFile, labels: PublishedFile, count: int) -> Samples:
        x = read_idx(folder, images, (count, *self.shape[1:])).copy()
        y = read_idx(folder, labels, (count,)).astype(np.int64)
        return Samples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y), scaling=self.scaling)


def _idx_files(train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[PublishedFile, ...]:
    return (
        PublishedFile("train-images-idx3-ubyte", 47_040_016, train_images),
        PublishedFile("train-labels-idx1-ubyte", 60_008, train_labels),
        PublishedFile("t10k-images-idx3-ubyte", 7_840_016, test_images),
        PublishedFile("t10k-labels-idx1-ubyte", 10_008, test_labels),
    )


class MnistSource(_IdxSource, frozen=True, kw_only=True, tag="mnist"):
    """70,000 handwritten digits (LeCun, Cortes, Burges)."""

    about: ClassVar[str] = "handwritten digits (LeCun, Cortes, Burges)"
    get: ClassVar[str] = "get the four idx files of Yann LeCun's MNIST page (or a mirror) and put them there"
    folders: ClassVar[tuple[str, ...]] = ("mnist", "MNIST/raw")
    files: ClassVar[tuple[PublishedFile, ...]] = _idx_files(
        "md5:6bbc9ace898e44ae57da46a324031adb",
        "md5:a25bea736e30d166cdddb491f175f624",
        "md5:2646ac647ad5339dbf082846283269ea",
        "md5:27ae3e4e09519cfbb04c329615203637",
    )
    scaling: ClassVar[Scaling] = Scaling((0.1307,), (0.3081,), 255.0)
    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=2, columns=2, flip=False)

    def class_names(self) -> tuple[str, ...]:
        return tuple("0123456789")


class FashionMnistSource(_IdxSource, frozen=True, kw_only=True, tag="fashion-mnist"):
    """70,000 small pictures of clothes (Xiao, Rasul, Vollgraf 2017)."""

    about: ClassVar[str] = "small pictures of clothes (Xiao, Rasul, Vollgraf 2017)"
    get: ClassVar[str] = (
        "on Debian and Ubuntu: apt install dataset-fashion-mnist; elsewhere get the four idx files"
        " from github.com/zalandoresearch/fashion-mnist and put them there"
    )
    folders: ClassVar[tuple[str, ...]] = ("fashion-mnist", "FashionMNIST/raw", "/usr/share/datasets/fashion-mnist")
    files: ClassVar[tuple[PublishedFile, ...]] = _idx_files(
        "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    )
    scaling: ClassVar[Scaling] = Scaling((0.2860,), (0.3530,), 255.0)
    augmentation: ClassVar[CropFlip | None] = CropFlip(rows=2, columns=2)

    def class_names(self) -> tuple[str, ...]:
        return ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
