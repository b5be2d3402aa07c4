from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potluck.data import Dataset, Info, Source, check, from_tensors, info, load, names, parse
from potluck.data.image_folder import ImageFolderSource
from potluck.data.synthetic import SyntheticSource
from potluck.errors import DataError, SettingError


class Own(Source, frozen=True, kw_only=True, tag="tests-own"):
    """A user-defined dataset, named by its import path."""

    count: int = 3

    def read(self, root: Path | None) -> Dataset:
        x, y = torch.zeros(self.count, 2), torch.rand(self.count)
        return from_tensors(x, y, x, y, name="own")


def test_the_known_datasets_are_listed_and_described() -> None:
    assert names() == (
        "drawn-digits", "digits", "synthetic", "generated-language", "generated-topics", "cifar10", "cifar100", "mnist",
        "fashion-mnist", "femnist", "speech-commands", "tiny-shakespeare", "folder", "text",
    )  # fmt: skip
    for name in names():
        description = info(name)
        assert isinstance(description, Info)
        assert description.name == name
        assert description.about
        assert description.get


def test_options_are_written_after_the_name() -> None:
    expected = SyntheticSource(classes=4, shape=(3, 16, 16), noise=0.5)
    assert parse("synthetic:classes=4,shape=3x16x16,noise=0.5") == expected
    assert parse({"kind": "synthetic", "classes": 4, "shape": [3, 16, 16], "noise": 0.5}) == expected
    assert parse(expected) is expected
    assert parse("folder:/a,b/c=d,size=8x9,channels=1") == ImageFolderSource(path="/a,b/c=d", size=(8, 9), channels=1)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cifar1O", "did you mean 'cifar10'"),
        ("synthetic:clases=4", "did you mean 'classes'"),
        ("synthetic:classes=0", r"data\.classes"),
        ("synthetic:classes=many", r"data\.classes"),
        ("synthetic:shape=0x8", r"data\.shape\[0\]"),
        ("synthetic:shape=big", r"data\.shape"),
        ("synthetic:4", "is not an option"),
        ("synthetic:train=1000000000,shape=100x100", "allowed"),
        ("cifar100:labels=both", r"data\.labels"),
        ("no.such.module:Data", "cannot import"),
    ],
)
def test_a_wrong_name_or_option_is_refused_by_its_path(name: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        load(name)


def test_a_user_dataset_is_named_by_its_class() -> None:
    data = load(f"{__name__}:Own")
    assert len(data.train) == 3
    assert check({"kind": "tests-own", "count": 5}).train == 5
    with pytest.raises(DataError, match="no augmentation"):
        load({"kind": "tests-own"}, augment=True)


def test_info_agrees_with_the_loaded_dataset() -> None:
    for name in ("drawn-digits:train=40,test=20", "digits", "synthetic:classes=3,shape=2x5,train=30,test=9"):
        description, dataset = info(name), load(name)
        assert (description.train, description.test, description.shape) == (
            len(dataset.train),
            len(dataset.test),
            dataset.shape,
        )
        assert (description.classes, description.sample_bytes) == (dataset.classes, dataset.sample_bytes)
