"""A simulated run whose folder becomes full, read-only or vanishes ends with one line; its last checkpoint is whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import potluck
from potluck.errors import StorageError
from potluck.job import dump_job, make
from potluck.model import weights_file
from potluck.run.run_store import RunStore
from tests.cli.calling import Shell
from tests.live.live_scenarios import SMALL, differing_tensors
from tests.small_disk import SmallDisk, mounted_disk

ROUNDS = 30


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_disk(tmp_path / "disk", "4m") as disk:
        yield disk


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def _fill(disk: SmallDisk) -> None:
    disk.fill()


def _make_read_only(disk: SmallDisk) -> None:
    disk.cover_read_only(disk.path / "run" / "checkpoints")


def _delete(disk: SmallDisk) -> None:
    shutil.rmtree(disk.path / "run")


def _run_until(folder: Path, rounds: int, disturb: Callable[[], None]) -> StorageError:
    """Simulate a run whose disk is disturbed after so many rounds."""

    def watch(store: RunStore, now: float) -> None:
        if store.progress.round == rounds:
            disturb()

    with pytest.raises(StorageError) as stopped:
        potluck.simulate({**SMALL, "stop": {"rounds": ROUNDS}}, folder=folder, watch=watch)
    return stopped.value


def test_a_full_disk_ends_a_run_that_continues_once_there_is_space(disk: SmallDisk, tmp_path: Path) -> None:
    run = disk.path / "run"
    error = _run_until(run, 7, disk.fill)
    assert "\n" not in str(error)
    assert f"cannot write {run}: No space left on device; free some space, then continue" in str(error)
    files = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert files == ["00000006.safetensors", "00000007.safetensors"] or files[-1] == "00000006.safetensors"
    assert not [name for name in files if "partial" in name]
    weights_file.read_checkpoint(run / "checkpoints" / files[-1])
    disk.empty()
    potluck.resume(run)
    potluck.simulate({**SMALL, "stop": {"rounds": ROUNDS}}, folder=tmp_path / "undisturbed")
    assert differing_tensors(run, tmp_path / "undisturbed") == []
    assert (run / "journal.jsonl").read_bytes() == (tmp_path / "undisturbed" / "journal.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("disturb", "problem"),
    [
        (_fill, "No space left on device; free some space"),
        (_make_read_only, "Read-only file system; make it writable"),
        (_delete, "No such file or directory; reconnect its disk"),
    ],
)
def test_every_outage_is_one_line(disk: SmallDisk, disturb: Callable[[SmallDisk], None], problem: str) -> None:
    error = _run_until(disk.path / "run", 3, lambda: disturb(disk))
    assert problem in str(error)
    assert isinstance(error, OSError)


def test_a_deleted_folder_is_noticed_without_checkpoints(tmp_path: Path) -> None:
    """Writing to a deleted file gives no error by itself."""
    run = tmp_path / "run"

    def watch(store: RunStore, now: float) -> None:
        if store.progress.round == 3:
            shutil.rmtree(run)

    with pytest.raises(StorageError, match="No such file"):
        potluck.simulate({**SMALL, "checkpoint": 0}, folder=run, watch=watch)
    assert not run.exists()


@pytest.mark.parametrize("free_bytes", [0, 20_000])
def test_the_command_says_so_in_one_line_with_exit_code_1(
    disk: SmallDisk, shell: Shell, tmp_path: Path, free_bytes: int
) -> None:
    (tmp_path / "job.toml").write_text(dump_job(make(SMALL)))
    disk.fill(free_bytes)
    result = shell("run", tmp_path / "job.toml", "--out", disk.path / "run", "--quiet")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    assert "No space left on device" in result.err


def test_a_read_only_disk_is_one_line_with_exit_code_1(disk: SmallDisk, shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(dump_job(make(SMALL)))
    shown = disk.path / "shown"
    shown.mkdir()
    disk.cover_read_only(shown)
    result = shell("run", tmp_path / "job.toml", "--out", shown / "run", "--quiet")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert f"{shown} cannot be written; choose another folder" in result.err
