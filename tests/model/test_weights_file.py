from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from potluck.atomic_file import mark_unusable
from potluck.checkpoint_files import list_checkpoints
from potluck.errors import ModelError, RunError
from potluck.model import weights_file
from potluck.model.weights_file import WEIGHTS_FILE, load_weights, save_weights


def network(width: int = 4, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def same(one: nn.Module, two: nn.Module) -> bool:
    other = two.state_dict()
    return all(torch.equal(value, other[name]) for name, value in one.state_dict().items())


@pytest.mark.parametrize("named", ["file", "folder"])
def test_saved_weights_load_unchanged(tmp_path: Path, named: str) -> None:
    first, second = network(), network(seed=1)
    first(torch.randn(5, 3))  # the norm has seen something
    path = save_weights(first, tmp_path / WEIGHTS_FILE)
    assert not same(first, second)
    load_weights(second, path if named == "file" else tmp_path)
    assert same(first, second)
    assert [entry.name for entry in tmp_path.iterdir()] == [WEIGHTS_FILE]


def test_tied_weights_are_saved(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    loaded = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    load_weights(loaded, save_weights(tied, tmp_path / WEIGHTS_FILE))
    assert same(tied, loaded)


def test_weights_that_do_not_fit_are_named_and_change_nothing(tmp_path: Path) -> None:
    other, target, before = network(width=5), network(), network()
    with pytest.raises(ModelError, match=r"'0.weight' has shape \(5, 3\), not \(4, 3\); train the same model"):
        load_weights(target, save_weights(other, tmp_path / WEIGHTS_FILE))
    with pytest.raises(ModelError, match=r"'1.weight' is missing"):
        load_weights(target, save_weights(nn.Sequential(nn.Linear(3, 4)), tmp_path / WEIGHTS_FILE))
    with pytest.raises(ModelError, match=r"the model has no '4.bias'"):
        load_weights(
            target, save_weights(nn.Sequential(*network().children(), nn.Linear(2, 2)), tmp_path / WEIGHTS_FILE)
        )
    with torch.no_grad():
        other = network()
        other[3].bias[0] = torch.nan  # type: ignore[index]
    with pytest.raises(ModelError, match="contains NaN or infinity"):
        load_weights(target, save_weights(other, tmp_path / WEIGHTS_FILE))
    assert same(target, before)


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no model\.safetensors; name a file, or the folder of a finished run"):
        load_weights(network(), tmp_path)
    with pytest.raises(ModelError, match="cannot read"):
        load_weights(network(), tmp_path / "none.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="cannot read"):
        load_weights(network(), tmp_path / "broken.safetensors")


TENSORS = {"params": torch.arange(5.0), "buffers": torch.zeros(0), "optimizer.step": torch.tensor(3.0)}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = weights_file.write_checkpoint(tmp_path / "checkpoints", 7, TENSORS, '{"round": 7}')
    tensors, words = weights_file.read_checkpoint(path)
    assert words == '{"round": 7}'
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())
    assert all(tensors[name].dtype == tensor.dtype for name, tensor in TENSORS.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64])
def test_every_type_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    kept = torch.tensor([1, 2, 3]).to(dtype)
    tensors, _ = weights_file.read_checkpoint(weights_file.write_checkpoint(tmp_path, 0, {"params": kept}, ""))
    assert torch.equal(tensors["params"], kept)
    assert tensors["params"].dtype == dtype


def test_slices_and_trained_tensors_can_be_saved(tmp_path: Path) -> None:
    whole = torch.arange(6.0, requires_grad=True)
    tensors, _ = weights_file.read_checkpoint(weights_file.write_checkpoint(tmp_path, 0, {"params": whole[::2]}, ""))
    assert tensors["params"].tolist() == [0.0, 2.0, 4.0]


def test_any_words_are_kept(tmp_path: Path) -> None:
    words = '{"name": "\\u00e9 \\n …", "größe": 3}'
    assert weights_file.read_checkpoint(weights_file.write_checkpoint(tmp_path, 0, TENSORS, words))[1] == words


def latest_metadata(folder: Path) -> str:
    return weights_file.read_checkpoint(weights_file.latest_checkpoint(folder))[1]


def test_old_ones_are_forgotten_and_the_last_ones_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        weights_file.write_checkpoint(tmp_path, number, TENSORS, str(number))
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["00000003.safetensors", "00000004.safetensors", "00000005.safetensors"]
    assert latest_metadata(tmp_path) == "5"


def test_files_that_somebody_put_beside_checkpoints_stay(tmp_path: Path) -> None:
    others = {"00000001-copy.safetensors", "best-so-far.safetensors", "00000009.safetensors.bak"}
    for name in others:
        (tmp_path / name).touch()
    for number in range(1, 6):
        weights_file.write_checkpoint(tmp_path, number, TENSORS, str(number))
    assert latest_metadata(tmp_path) == "5"
    kept = {"00000003.safetensors", "00000004.safetensors", "00000005.safetensors"}
    assert {path.name for path in tmp_path.iterdir()} == others | kept


def test_a_folder_without_checkpoints_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no checkpoint in"):
        weights_file.latest_checkpoint(tmp_path)


def test_one_of_the_same_number_is_replaced(tmp_path: Path) -> None:
    weights_file.write_checkpoint(tmp_path, 3, TENSORS, "old")
    weights_file.write_checkpoint(tmp_path, 3, TENSORS, "new")
    assert latest_metadata(tmp_path) == "new"


def test_a_file_that_was_not_finished_is_not_seen(tmp_path: Path) -> None:
    whole = weights_file.write_checkpoint(tmp_path, 1, TENSORS, "whole")
    (tmp_path / "00000002.partial").write_bytes(whole.read_bytes()[:50])
    assert list_checkpoints(tmp_path) == [whole]
    weights_file.write_checkpoint(tmp_path, 2, TENSORS, "now whole")
    assert latest_metadata(tmp_path) == "now whole"
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("dies", ["fsync", "replace"])
def test_a_crash_while_writing_leaves_the_one_before(
    dies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights_file.write_checkpoint(tmp_path, 1, TENSORS, "before")

    def die(*arguments: object) -> None:
        raise OSError("power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", die) if dies == "fsync" else patch.setattr(os, "replace", die)
        with pytest.raises(OSError, match="power is gone"):
            weights_file.write_checkpoint(tmp_path, 2, TENSORS, "after")
    assert latest_metadata(tmp_path) == "before"


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(3)}, foreign)
    with pytest.raises(RunError, match="is not a checkpoint of a run"):
        weights_file.read_checkpoint(foreign)
    whole = weights_file.write_checkpoint(tmp_path, 1, TENSORS, "whole").read_bytes()
    damaged = tmp_path / "damaged.safetensors"
    for content in (b"", b"nonsense", whole[:-4], whole[:20], b"\xff" * 100):
        damaged.write_bytes(content)
        with pytest.raises(RunError, match=r"cannot read checkpoint .*damaged\.safetensors"):
            weights_file.read_checkpoint(damaged)
    with pytest.raises(RunError, match="cannot read checkpoint"):
        weights_file.read_checkpoint(tmp_path / "none.safetensors")


@pytest.mark.parametrize("named", ["checkpoint", "weights"])
def test_every_flipped_bit_is_noticed(tmp_path: Path, named: str) -> None:
    if named == "checkpoint":
        path = weights_file.write_checkpoint(tmp_path, 1, TENSORS, '{"time": 1.5}')
    else:
        path = save_weights(nn.Linear(2, 2), tmp_path / WEIGHTS_FILE, '{"metric": "loss"}')
    assert weights_file.find_damage(path) is None
    whole, noticed = path.read_bytes(), 0
    tensors, header = weights_file.read_checkpoint(path)
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1 << index % 8]) + whole[index + 1 :])
        try:
            again, header_again = weights_file.read_checkpoint(path)
        except RunError:
            noticed += 1
            continue
        assert header_again == header or header_again.startswith("{ha256:"), "only JSON's spaces do not matter"
        assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert noticed > 0.9 * len(whole)


def test_damaged_weights_are_not_loaded(tmp_path: Path) -> None:
    path = save_weights(network(), tmp_path / WEIGHTS_FILE)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot read .*its content does not match its digest"):
        load_weights(network(), path)


def test_files_without_a_digest_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "old.safetensors", metadata={"potluck": "{}"})
    assert weights_file.read_checkpoint(tmp_path / "old.safetensors")[1] == "{}"
    save_file(network().state_dict(), tmp_path / "foreign.safetensors", metadata={"format": "pt"})
    load_weights(network(seed=1), tmp_path / "foreign.safetensors")


def test_an_unusable_checkpoint_is_kept_until_the_run_is_there_again(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        weights_file.write_checkpoint(tmp_path, number, TENSORS, str(number))
    mark_unusable(tmp_path / "00000003.safetensors")
    weights_file.write_checkpoint(tmp_path, 2, TENSORS, "again")
    assert latest_metadata(tmp_path) == "again"
    assert (tmp_path / "00000003.safetensors.unusable").exists()
    weights_file.write_checkpoint(tmp_path, 3, TENSORS, "again")
    assert not list(tmp_path.glob("*.unusable"))
