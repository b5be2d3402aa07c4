from __future__ import annotations

import gzip
import hashlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from potluck.data import dataset_files
from potluck.data.dataset_files import ColumnSpec, PublishedFile, read_idx, read_npz, read_published_file
from potluck.errors import DataError

CONTENT = bytes(range(200))
FILE = PublishedFile("some.bin", 200, "sha256:" + hashlib.sha256(CONTENT).hexdigest())


def test_a_file_is_read_plain_or_gzipped(tmp_path: Path) -> None:
    (tmp_path / "some.bin.gz").write_bytes(gzip.compress(CONTENT))
    assert read_published_file(tmp_path, FILE).tobytes() == CONTENT
    (tmp_path / "some.bin").write_bytes(CONTENT)
    assert read_published_file(tmp_path, FILE).tobytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (CONTENT[:-1], "199 bytes instead of 200"),
        (CONTENT + b"x", "201 bytes instead of 200"),
        (CONTENT[::-1], "not the published file"),
    ],
)
def test_a_truncated_or_wrong_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "some.bin").write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_published_file(tmp_path, FILE)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (gzip.compress(CONTENT)[:-20], "cannot be unpacked"),
        (b"no gzip at all", "cannot be unpacked"),
        (gzip.compress(CONTENT[:50]), "unpacks to 50 bytes instead of 200"),
        (gzip.compress(bytes(10_000_000)), "more than 200 bytes"),
        (gzip.compress(CONTENT[::-1]), "not the published file"),
    ],
    ids=["cut off", "no gzip", "too short", "too long", "another file"],  # otherwise gzip embeds the current time
)
def test_a_damaged_archive_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "some.bin.gz").write_bytes(content)
    with pytest.raises(DataError, match=problem):
        read_published_file(tmp_path, FILE)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"some\.bin is missing"):
        read_published_file(tmp_path, FILE)


def test_an_idx_file_must_have_the_expected_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + values.tobytes()
    (tmp_path / "some").write_bytes(content)
    file = PublishedFile("some", len(content), "md5:" + hashlib.md5(content).hexdigest())
    assert np.array_equal(read_idx(tmp_path, file, (2, 3, 4)), values)
    with pytest.raises(DataError, match="not an idx file of 2 x 4 x 3"):
        read_idx(tmp_path, file, (2, 4, 3))


COLUMNS = {"x": ColumnSpec("u", (2,)), "y": ColumnSpec("iu"), "names": ColumnSpec("U", per_sample=False)}


def _npz(path: Path, **changes: object) -> Path:
    arrays = {"x": np.zeros((3, 2), np.uint8), "y": np.zeros(3, np.int64), "names": np.array(["a"]), **changes}
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})  # type: ignore[arg-type]
    return path


def test_arrays_of_the_expected_type_are_read(tmp_path: Path) -> None:
    assert set(read_npz(_npz(tmp_path / "a.npz", more=np.zeros(9)), COLUMNS)) == set(COLUMNS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"y": None}, "no array 'y'"),
        ({"x": np.zeros((3, 3), np.uint8)}, r"expected \(N, 2\)"),
        ({"x": np.zeros((3, 2), np.float32)}, "float32"),
        ({"y": np.zeros(4, np.int64)}, "differ in length"),
        ({"y": np.array([1, "a", None], dtype=object)}, "cannot be read"),
    ],
)
def test_arrays_of_another_type_are_refused(tmp_path: Path, changes: dict[str, object], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        read_npz(_npz(tmp_path / "a.npz", **changes), COLUMNS)


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = _npz(tmp_path / "a.npz")
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"", content[:60] + b"\xff\xff\xff\xff" + content[64:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError):
            read_npz(path, COLUMNS)


def test_an_npz_with_an_oversized_header_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_files, "LARGEST_BYTES", 1_000_000)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(2_000_000))
    with pytest.raises(DataError, match="more than the 1,000,000 allowed"):
        read_npz(path, COLUMNS)
