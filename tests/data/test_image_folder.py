from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from potluck.data import info, load
from potluck.errors import DataError, SettingError

image = pytest.importorskip("PIL.Image")

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


def _paint(top: Path, count: int, size: tuple[int, int] = (20, 10)) -> None:
    for name, colour in COLOURS.items():
        (top / name).mkdir(parents=True)
        for number in range(count):
            image.new("RGB", size, colour).save(top / name / f"{number}.png")


def test_images_are_resized_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    _paint(tmp_path, count=10)
    data = load(f"folder:{tmp_path},size=6x8")
    assert data.classes == ("blue", "green", "red")
    assert data.shape == (3, 6, 8)
    assert np.bincount(data.test.labels).tolist() == [2, 2, 2]
    assert np.bincount(data.train.labels).tolist() == [8, 8, 8]
    red = data.train.x[data.train.y == 2]
    assert red[:, 0].eq(200).all()
    assert red[:, 1:].eq(0).all()
    assert info(f"folder:{tmp_path}").train == 24


def test_existing_train_and_test_folders_are_used(tmp_path: Path) -> None:
    _paint(tmp_path / "train", count=3)
    _paint(tmp_path / "test", count=1)
    data = load({"kind": "folder", "path": str(tmp_path), "channels": 1})
    assert (len(data.train), len(data.test), data.shape) == (9, 3, (1, 32, 32))


def test_a_path_may_contain_commas(tmp_path: Path) -> None:
    top = tmp_path / "red, green,blue"
    _paint(top, count=2)
    assert len(load(f"folder:{top},channels=1").classes) == 3


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    _paint(tmp_path, count=2)
    (tmp_path / "red" / "0.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"red/0\.png cannot be read as an image"):
        load(f"folder:{tmp_path}")


def test_a_folder_without_images_or_with_unknown_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images"):
        load(f"folder:{tmp_path}")
    _paint(tmp_path / "train", count=1)
    (tmp_path / "test" / "pink").mkdir(parents=True)
    with pytest.raises(DataError, match="holds pink"):
        load(f"folder:{tmp_path}")
    with pytest.raises(DataError, match="is not a folder"):
        load(f"folder:{tmp_path}/nowhere")
    with pytest.raises(SettingError, match="height x width"):
        load(f"folder:{tmp_path},size=1x2x3")
