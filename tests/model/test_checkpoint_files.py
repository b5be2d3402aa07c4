from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from potluck.errors import RunError
from potluck.model import checkpoint_files

TENSORS = {"params": torch.arange(5.0), "buffers": torch.zeros(0), "optimizer.step": torch.tensor(3.0)}


def test_written_content_is_read_back(tmp_path: Path) -> None:
    path = checkpoint_files.write_checkpoint(tmp_path / "checkpoints", 7, TENSORS, '{"round": 7}')
    tensors, text = checkpoint_files.read_checkpoint(path)
    assert text == '{"round": 7}'
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert all(tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_every_dtype_round_trips(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.tensor([1, 2, 3]).to(dtype)
    tensors, _ = checkpoint_files.read_checkpoint(
        checkpoint_files.write_checkpoint(tmp_path, 0, {"params": tensor}, "")
    )
    assert torch.equal(tensors["params"], tensor)
    assert tensors["params"].dtype == dtype


def test_slices_and_trained_tensors_can_be_saved(tmp_path: Path) -> None:
    complete = torch.arange(6.0, requires_grad=True)
    tensors, _ = checkpoint_files.read_checkpoint(
        checkpoint_files.write_checkpoint(tmp_path, 0, {"params": complete[::2]}, "")
    )
    assert tensors["params"].tolist() == [0.0, 2.0, 4.0]


def test_any_text_round_trips(tmp_path: Path) -> None:
    text = '{"name": "\\u00e9 \\n …", "größe": 3}'
    assert checkpoint_files.read_checkpoint(checkpoint_files.write_checkpoint(tmp_path, 0, TENSORS, text))[1] == text


def test_the_latest_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    for number in (3, 20, 100, 9):
        (tmp_path / f"{number:08d}.safetensors").touch()
    assert checkpoint_files.latest_checkpoint(tmp_path).name == "00000100.safetensors"


def test_old_checkpoints_are_deleted_and_the_last_ones_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        checkpoint_files.write_checkpoint(tmp_path, number, TENSORS, str(number))
    tensor = sorted(path.name for path in tmp_path.iterdir())
    assert tensor == ["00000004.safetensors", "00000005.safetensors"]
    assert checkpoint_files.read_checkpoint(checkpoint_files.latest_checkpoint(tmp_path))[1] == "5"


def test_a_checkpoint_of_the_same_number_is_replaced(tmp_path: Path) -> None:
    checkpoint_files.write_checkpoint(tmp_path, 3, TENSORS, "old")
    checkpoint_files.write_checkpoint(tmp_path, 3, TENSORS, "new")
    assert checkpoint_files.read_checkpoint(checkpoint_files.latest_checkpoint(tmp_path))[1] == "new"


def test_an_unfinished_file_is_ignored(tmp_path: Path) -> None:
    complete = checkpoint_files.write_checkpoint(tmp_path, 1, TENSORS, "whole")
    (tmp_path / "00000002.partial").write_bytes(complete.read_bytes()[:50])
    assert checkpoint_files.latest_checkpoint(tmp_path) == complete
    checkpoint_files.write_checkpoint(tmp_path, 2, TENSORS, "now whole")
    assert checkpoint_files.read_checkpoint(checkpoint_files.latest_checkpoint(tmp_path))[1] == "now whole"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("dies", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_previous_checkpoint(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_files.write_checkpoint(tmp_path, 1, TENSORS, "before")

    def die(*arguments: object) -> None:
        raise OSError("power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die) if dies == "fsync" else patch.setattr(os, "replace", die)
        with pytest.raises(OSError, match="power is gone"):
            checkpoint_files.write_checkpoint(tmp_path, 2, TENSORS, "after")
    assert checkpoint_files.read_checkpoint(checkpoint_files.latest_checkpoint(tmp_path))[1] == "before"


def test_a_run_without_checkpoint_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="no checkpoint in"):
            checkpoint_files.latest_checkpoint(folder)


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(3)}, foreign)
    with pytest.raises(RunError, match="is not a checkpoint of a run"):
        checkpoint_files.read_checkpoint(foreign)
    complete = checkpoint_files.write_checkpoint(tmp_path, 1, TENSORS, "whole").read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for content in (b"", b"nonsense", complete[:-4], complete[:20], b"\xff" * 100):
        damaged.write_bytes(content)
        with pytest.raises(RunError, match=r"cannot read checkpoint .*damaged\.safetensors"):
            checkpoint_files.read_checkpoint(damaged)
    with pytest.raises(RunError, match="cannot read checkpoint"):
        checkpoint_files.read_checkpoint(tmp_path / "none.safetensors")
