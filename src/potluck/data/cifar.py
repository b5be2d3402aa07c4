"""CIFAR-10 and CIFAR-100 in the publisher's binary layout: each image is its labels, then 3,072 planar RGB bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from potluck.data.dataset_files import PublishedFile, read_published_file
from potluck.data.dataset_source import PublishedSource
from potluck.data.samples import CropFlip, Dataset, Samples, Scaling
from potluck.settings import doc

__all__ = ["Cifar10Source", "Cifar100Source"]

_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


class _CifarSource(PublishedSource, frozen=True, kw_only=True):
    """`files` lists the training files, then one test file."""

    shape: ClassVar[tuple[int, ...]] = _IMAGE
    train: ClassVar[int] = 50_000
    test: ClassVar[int] = 10_000
    augmentation: ClassVar[CropFlip | None] = CropFlip()

    def read(self, root: Path | None) -> Dataset:
        folder = self.find_dataset_folder(root)
        train = self._read_samples(folder, self.files[:-1])
        test = self._read_samples(folder, self.files[-1:])
        return Dataset(name=self.name, train=train, test=test, classes=self.class_names())

    def _label_columns(self) -> tuple[int, int]:
        """Return the number of label bytes per image and the index of the one to use."""
        return 1, 0

    def _read_samples(self, folder: Path, files: tuple[PublishedFile, ...]) -> Samples:
        columns, label = self._label_columns()
        row = columns + _PIXELS
        count = sum(file.size for file in files) // row
        x, y = np.empty((count, _PIXELS), np.uint8), np.empty(count, np.int64)
        start = 0
        for file in files:
            rows = read_published_file(folder, file).reshape(-1, row)
            x[start : start + len(rows)] = rows[:, columns:]
            y[start : start + len(rows)] = rows[:, label]
            start += len(rows)
        return Samples(torch.from_numpy(x).view(-1, *_IMAGE), torch.from_numpy(y), scaling=self.scaling)


class Cifar10Source(_CifarSource, frozen=True, kw_only=True, tag="cifar10"):
    """60,000 photographs of 10 kinds of animals and vehicles (Krizhevsky 2009)."""

    about: ClassVar[str] = "photographs of 10 kinds of animals and vehicles (Krizhevsky 2009)"
    get: ClassVar[str] = (
        "get 'CIFAR-10 binary version' from Alex Krizhevsky's page at the University of Toronto"
        " (cs.toronto.edu/~kriz/cifar.html) and unpack it there as cifar-10-batches-bin/"
    )
    folders: ClassVar[tuple[str, ...]] = ("cifar-10-batches-bin",)
    marker: ClassVar[str] = "data_batch_1.bin"
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            "data_batch_1.bin", 30_730_000, "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
        ),
        PublishedFile(
            "data_batch_2.bin", 30_730_000, "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
        ),
        PublishedFile(
            "data_batch_3.bin", 30_730_000, "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
        ),
        PublishedFile(
            "data_batch_4.bin", 30_730_000, "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
        ),
        PublishedFile(
            "data_batch_5.bin", 30_730_000, "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
        ),
        PublishedFile(
            "test_batch.bin", 30_730_000, "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
        ),
    )
    scaling: ClassVar[Scaling] = Scaling((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), 255.0)

    def class_names(self) -> tuple[str, ...]:
        return ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Cifar100Source(_CifarSource, frozen=True, kw_only=True, tag="cifar100"):
    """60,000 photographs of 100 kinds of things in 20 groups (Krizhevsky 2009)."""

    labels: Annotated[Literal["fine", "coarse"], doc("Use the 100 fine classes or the 20 coarse ones.")] = "fine"

    about: ClassVar[str] = "photographs of 100 kinds of things in 20 groups (Krizhevsky 2009)"
    get: ClassVar[str] = (
        "get 'CIFAR-100 binary version' from Alex Krizhevsky's page at the University of Toronto"
        " (cs.toronto.edu/~kriz/cifar.html) and unpack it there as cifar-100-binary/"
    )
    folders: ClassVar[tuple[str, ...]] = ("cifar-100-binary",)
    marker: ClassVar[str] = "train.bin"
    files: ClassVar[tuple[PublishedFile, ...]] = (
        PublishedFile(
            "train.bin", 153_700_000, "sha256:f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"
        ),
        PublishedFile(
            "test.bin", 30_740_000, "sha256:d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"
        ),
    )
    scaling: ClassVar[Scaling] = Scaling((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 255.0)

    def class_names(self) -> tuple[str, ...]:
        return tuple((_FINE if self.labels == "fine" else _COARSE).split())

    def _label_columns(self) -> tuple[int, int]:
        return 2, 1 if self.labels == "fine" else 0


_COARSE = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices household_furniture
insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes large_omnivores_and_herbivores
medium_mammals non-insect_invertebrates people reptiles small_mammals trees vehicles_1 vehicles_2
"""

_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
