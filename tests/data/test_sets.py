"""Each published file layout in miniature: files written by hand and read by the dataset's loader."""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from potluck.data import check, info, load
from potluck.data.cifar import Cifar10Source, Cifar100Source
from potluck.data.dataset_files import PublishedFile
from potluck.data.mnist import FashionMnistSource, MnistSource
from potluck.errors import DataError


@pytest.fixture(autouse=True)
def _isolate_dataset_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POTLUCK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _put(folder: Path, name: str, content: bytes, *, packed: bool = False) -> PublishedFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    return PublishedFile(name, len(content), "sha256:" + hashlib.sha256(content).hexdigest())


def _cifar_rows(count: int, label_bytes: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
    rows[:, :label_bytes] = np.arange(count)[:, None] % 10
    return rows


def test_cifar10_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    names = ["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"]
    rows = [_cifar_rows(20, 1, seed) for seed in range(3)]
    files = [_put(folder, name, part.tobytes()) for name, part in zip(names, rows, strict=True)]
    monkeypatch.setattr(Cifar10Source, "files", tuple(files))
    data = load("cifar10", tmp_path)
    assert (len(data.train), len(data.test), data.shape, len(data.classes)) == (40, 20, (3, 32, 32), 10)
    assert data.train.x.dtype == torch.uint8
    red_first_row = rows[1][4, 1:33]
    assert np.array_equal(data.train.x[24, 0, 0].numpy(), red_first_row)
    assert data.train.y[24] == 4
    assert info("cifar10", tmp_path).location == str(folder)


def test_cifar100_offers_fine_and_coarse_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _cifar_rows(20, 2, 0)
    rows[:, 0], rows[:, 1] = np.arange(20), np.arange(20) * 5
    folder = tmp_path / "cifar-100-binary"
    files = tuple(_put(folder, name, rows.tobytes()) for name in ("train.bin", "test.bin"))
    monkeypatch.setattr(Cifar100Source, "files", files)
    fine, coarse = load("cifar100", tmp_path), load("cifar100:labels=coarse", tmp_path)
    assert fine.train.y.tolist() == list(range(0, 100, 5))
    assert coarse.train.y.tolist() == list(range(20))
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    assert np.array_equal(fine.test.x[3].numpy().reshape(-1), rows[3, 2:])


def test_a_wrong_label_with_the_right_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _cifar_rows(20, 1, 0)
    rows[5, 0] = 10
    folder = tmp_path / "cifar-10-batches-bin"
    files = tuple(_put(folder, name, rows.tobytes()) for name in ("data_batch_1.bin", "test_batch.bin"))
    monkeypatch.setattr(Cifar10Source, "files", files)
    with pytest.raises(DataError, match="labels go from 0 to 10"):
        load("cifar10", tmp_path)


def test_a_truncated_cifar_file_is_refused_by_its_published_size(tmp_path: Path) -> None:
    _put(tmp_path / "cifar-10-batches-bin", "data_batch_1.bin", b"short")
    with pytest.raises(DataError, match="5 bytes instead of 30,730,000"):
        check("cifar10", tmp_path)


@pytest.mark.parametrize(
    ("name", "kind", "packed"), [("mnist", MnistSource, False), ("fashion-mnist", FashionMnistSource, True)]
)
def test_idx_sets_are_read_plain_and_gzipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[MnistSource], packed: bool
) -> None:
    rng = np.random.default_rng(0)
    files = []
    for part, count in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        size = count.to_bytes(4, "big")
        header = bytes([0, 0, 8, 3]) + size + bytes([0, 0, 0, 28, 0, 0, 0, 28])
        labels = bytes([0, 0, 8, 1]) + size + bytes(index % 10 for index in range(count))
        files.append(_put(tmp_path / name, f"{part}-images-idx3-ubyte", header + images.tobytes(), packed=packed))
        files.append(_put(tmp_path / name, f"{part}-labels-idx1-ubyte", labels, packed=packed))
    monkeypatch.setattr(kind, "files", tuple(files))
    monkeypatch.setattr(kind, "train", 30)
    monkeypatch.setattr(kind, "test", 10)
    data = load(name, tmp_path, augment=True)
    assert data.train.x.shape == (30, 1, 28, 28)
    assert np.array_equal(data.test.x[:, 0].numpy(), images)
    assert data.train.y.tolist() == [index % 10 for index in range(30)]
    assert data.train.augmentation is not None
    assert data.test.augmentation is None


def _write_femnist(root: Path, **changes: np.ndarray) -> None:
    arrays = {
        "x": np.full((6, 28, 28), 255, np.uint8),
        "y": np.array([0, 10, 36, 61, 1, 2], np.uint8),
        "writer": np.array([0, 0, 1, 1, 0, 2], np.uint16),
        "split": np.array([0, 0, 0, 0, 1, 1], np.uint8),
        "writers": np.array(["anna", "ben", "cleo"]),
        **changes,
    }
    (root / "femnist").mkdir(exist_ok=True)
    np.savez_compressed(root / "femnist" / "femnist.npz", **arrays)  # type: ignore[arg-type]


def test_femnist_keeps_its_writers(tmp_path: Path) -> None:
    _write_femnist(tmp_path)
    data = load("femnist", tmp_path)
    assert [data.classes[label] for label in data.train.labels] == ["0", "A", "a", "z"]
    assert data.train.owner is not None
    assert data.train.owner.tolist() == [0, 0, 1, 1]
    assert data.test.owner is not None
    assert data.test.owner.tolist() == [0, 2]
    assert (info("femnist", tmp_path).train, info("femnist", tmp_path).test) == (4, 2)
    assert check("femnist", tmp_path).owners == 2


def test_femnist_with_impossible_numbers_is_refused(tmp_path: Path) -> None:
    _write_femnist(tmp_path, y=np.array([0, 1, 2, 62, 0, 0], np.uint8))
    with pytest.raises(DataError, match="y goes from 0 to 62, expected 0 to 61"):
        load("femnist", tmp_path)
    _write_femnist(tmp_path, writer=np.array([0, 0, 1, 3, 0, 2], np.uint16))
    with pytest.raises(DataError, match="writer goes from 0 to 3"):
        load("femnist", tmp_path)


SPOKEN_WORDS = ["down", "go", "left", "no", "off", "on", "one", "right", "stop", "three", "two", "up", "yes"]
ALL_WORDS = ["_silence_", "_unknown_", *SPOKEN_WORDS]


def _write_speech(root: Path, words: list[str]) -> None:
    train = [words.index(word) for word in ("down", "one", "two", "yes")]
    official = [words.index(word) for word in ("_silence_", "_unknown_", "yes")]
    y = np.array([*train, *train, *train, *official], np.uint8)
    (root / "kws").mkdir(exist_ok=True)
    np.savez_compressed(
        root / "kws" / "kws.npz",
        x=np.zeros((len(y), 49, 40), np.uint8),
        y=y,
        speaker=np.zeros(len(y), np.uint16),
        split=np.repeat(np.array([0, 1, 2, 3], np.uint8), [4, 4, 4, 3]),
        words=np.array(words),
        speakers=np.array(["-"]),
    )


def test_speech_commands_offer_the_words_or_the_official_test(tmp_path: Path) -> None:
    _write_speech(tmp_path, ALL_WORDS)
    words = load("speech-commands", tmp_path)
    assert words.shape == (1, 49, 40)
    assert [words.classes[label] for label in words.train.labels] == ["down", "one", "two", "yes"]
    assert torch.equal(words.train.y, words.test.y)
    official = load("speech-commands:test_clips=official", tmp_path)
    assert len(official.classes) == 12
    assert [official.classes[label] for label in official.train.labels] == ["down", "_unknown_", "_unknown_", "yes"]
    assert [official.classes[label] for label in official.test.labels] == ["_silence_", "_unknown_", "yes"]
    assert len(load("speech-commands:test_clips=validation", tmp_path).test) == 4


def test_speech_commands_with_other_words_are_refused(tmp_path: Path) -> None:
    _write_speech(tmp_path, ALL_WORDS[::-1])
    with pytest.raises(DataError, match="words are yes, up"):
        load("speech-commands", tmp_path)


def test_digits_are_real_fixed_and_stratified() -> None:
    data, repeated = load("digits"), load("digits")
    assert (len(data.train), len(data.test), data.shape) == (1437, 360, (1, 8, 8))
    assert torch.equal(data.train.x, repeated.train.x)
    assert torch.equal(data.test.y, repeated.test.y)
    counts = np.bincount(data.test.labels)
    assert counts.min() >= 34
    assert counts.max() <= 37
    # The same on every machine and release: devices must agree on the test samples.
    assert hashlib.sha256(data.test.x.numpy().tobytes()).hexdigest()[:16] == "1b67ee694ed7567d"
    inputs, _ = data.train.batch(np.arange(len(data.train)))
    assert inputs.mean().abs() < 0.01
    assert abs(float(inputs.std()) - 1) < 0.01


def test_missing_digits_explain_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(DataError, match=r"potluck\[digits\]"):
        load("digits")


def test_synthetic_data_is_seeded_and_can_be_learned() -> None:
    name = "synthetic:classes=4,shape=3x10x12,train=400,test=200,noise=0.5,seed=3"
    data, repeated = load(name), load(name)
    assert data.shape == (3, 10, 12)
    assert torch.equal(data.train.x, repeated.train.x)
    assert not torch.equal(data.train.x, load(name.replace("seed=3", "seed=4")).train.x)
    x, y = data.train.batch(np.arange(400))
    centres = torch.stack([x[y == label].mean(0).flatten() for label in range(4)])
    x_test, y_test = data.test.batch(np.arange(200))
    nearest = torch.cdist(x_test.flatten(1), centres).argmin(1)
    assert float((nearest == y_test).float().mean()) > 0.95


def test_synthetic_data_may_be_flat_and_owned() -> None:
    data = load("synthetic:shape=16,owners=5,train=100")
    assert data.shape == (16,)
    assert data.train.owner is not None
    assert set(data.train.owner) == set(range(5))


def test_a_missing_dataset_lists_the_searched_folders_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as error:
        load("cifar10", tmp_path / "given")
    message = str(error.value)
    positions = [message.index(str(tmp_path / folder)) for folder in ("given", "named", "cache")]
    assert positions == sorted(positions)
    assert "Toronto" in message
    assert "cifar-10-batches-bin/" in message
    assert "\n" not in message


def test_an_incomplete_dataset_names_the_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _put(tmp_path / "cifar-10-batches-bin", "data_batch_1.bin", _cifar_rows(5, 1, 0).tobytes())
    monkeypatch.setattr(Cifar10Source, "files", (file, PublishedFile("test_batch.bin", 1, "md5:")))
    with pytest.raises(DataError, match=r"test_batch\.bin is missing"):
        load("cifar10", tmp_path)
