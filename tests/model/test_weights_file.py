from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from potluck.errors import ModelError
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
