"""Reads a folder of images: one subfolder per class, or `train` and `test` folders with one subfolder per class."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from msgspec import Meta

from potluck.data.data_splits import split_holdout
from potluck.data.dataset_files import LARGEST_BYTES, Array
from potluck.data.dataset_source import Info, Source
from potluck.data.samples import CropFlip, Dataset, Samples, Scaling
from potluck.errors import DataError
from potluck.settings import doc

__all__ = ["ImageFolderSource"]

_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
_TEST_SHARE = 0.2

Side = Annotated[int, Meta(ge=1, le=4096)]
Labelled = list[tuple[Path, int]]


class ImageFolderSource(Source, frozen=True, kw_only=True, tag="folder"):
    """Your own images: one folder per class, or such folders in `train` and `test`; else a fifth is tested on."""

    path: Annotated[str, doc("Folder of the images.")] = ""
    size: Annotated[tuple[Side, ...], doc("Height and width to which every image is resized.")] = (32, 32)
    channels: Annotated[Literal[1, 3], doc("Colour channels: 1 for grey, 3 for RGB.")] = 3

    augmentation: ClassVar[CropFlip | None] = CropFlip()

    def __post_init__(self) -> None:
        if len(self.size) != 2:
            raise ValueError(f"the size of an image is height x width, such as 32x32, not {self.size}")

    def read(self, root: Path | None) -> Dataset:
        classes, train, test = self._list_images()
        wanted = (len(train) + len(test)) * math.prod(self._image_shape())
        if wanted > LARGEST_BYTES:
            raise DataError(f"{self.path}: {wanted:,} bytes of images are more than the {LARGEST_BYTES:,} allowed")
        return Dataset(name=self.name, train=self._read_samples(train), test=self._read_samples(test), classes=classes)

    def info(self, root: Path | None) -> Info:
        classes, train, test = self._list_images() if self.path else ((), [], [])
        return Info(
            name=self.name,
            about="your own images, one folder for each class",
            shape=self._image_shape(),
            classes=classes,
            train=len(train),
            test=len(test),
            sample_bytes=math.prod(self._image_shape()),
            location=self.path or None,
            get="name it as folder:/path (images need: pip install 'potluck[images]')",
            options=self.option_values(),
        )

    def _image_shape(self) -> tuple[int, ...]:
        return (self.channels, *self.size)

    def _list_images(self) -> tuple[tuple[str, ...], Labelled, Labelled]:
        top = Path(self.path).expanduser()
        if not self.path or not top.is_dir():
            raise DataError(f"folder: {self.path!r} is not a folder; name it as folder:/path/to/images")
        if (top / "train").is_dir() and (top / "test").is_dir():
            classes = _class_names(top / "train")
            return classes, _find_images(top / "train", classes), _find_images(top / "test", classes)
        classes = _class_names(top)
        images = _find_images(top, classes)
        labels = np.array([label for _, label in images])
        train, test = split_holdout(labels, round(_TEST_SHARE * len(images)))
        return classes, [images[i] for i in train], [images[i] for i in test]

    def _read_samples(self, images: Labelled) -> Samples:
        x = np.empty((len(images), *self._image_shape()), np.uint8)
        for index, (path, _) in enumerate(images):
            x[index] = self._read_pixels(path)
        y = torch.tensor([label for _, label in images], dtype=torch.int64)
        # The same on every device, whatever images each of them has.
        scaling = Scaling((0.5,), (0.25,), 255.0)
        return Samples(torch.from_numpy(x), y, scaling=scaling)

    def _read_pixels(self, path: Path) -> Array:
        try:
            from PIL import Image
        except ImportError as error:
            raise DataError("reading images needs Pillow: pip install 'potluck[images]'") from error
        height, width = self.size
        try:
            with Image.open(path) as image:
                fitted = image.convert("L" if self.channels == 1 else "RGB").resize((width, height))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as an image ({error}); mend or remove it") from error
        return np.asarray(fitted, np.uint8).reshape(height, width, self.channels).transpose(2, 0, 1)


def _class_names(top: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in top.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def _find_images(top: Path, classes: tuple[str, ...]) -> Labelled:
    """Sorted by class and name, so that every device lists them alike."""
    unknown = set(_class_names(top)) - set(classes)
    if unknown:
        raise DataError(f"{top} holds {', '.join(sorted(unknown))}, which no training folder is called")
    paths = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted((top / name).glob("*"))
        if path.suffix.lower() in _SUFFIXES
    ]
    if not paths:
        raise DataError(f"{top} holds no images; put them into one folder for each class, as in {top}/cat/1.png")
    return paths
