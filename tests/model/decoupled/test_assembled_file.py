"""An assembled network loads unchanged from its file, and invalid files are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from potluck.errors import ModelError
from potluck.model import zoo
from potluck.model.decoupled import decouple, load, save
from potluck.planning.groups import even_groups
from potluck.settings import load_object
from tests.model.decoupled.networks import SHAPE, Functional, samples, small, small_grouped, wake


@pytest.mark.parametrize("kind", ["small", "functional"])
def test_a_saved_network_loads_unchanged(tmp_path: Path, kind: str) -> None:
    grouped = decouple(small() if kind == "small" else Functional(), SHAPE, ((5, 0), (1, 2, 3), (4,)), 1)
    wake(grouped)
    assembled = grouped.assemble()
    path = save(assembled, tmp_path / "net.safetensors")
    loaded = load(path)
    inputs, _ = samples()
    assert torch.equal(loaded(inputs), assembled(inputs))
    assert loaded.spec == grouped.spec
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_speech_network_with_depthwise_layers_loads_unchanged(tmp_path: Path) -> None:
    grouped = decouple(zoo.build_model("ds-cnn"), (1, 49, 10), even_groups(12, 5), 0)
    wake(grouped)
    inputs = torch.randn(3, 1, 49, 10)
    assert torch.equal(load(save(grouped, tmp_path / "net"))(inputs), grouped.eval()(inputs))


def test_untrained_groups_are_still_marked_after_loading(tmp_path: Path) -> None:
    grouped = small_grouped()
    grouped.group_branch(1).readout.trained.fill_(1.0)
    assert load(save(grouped.assemble(), tmp_path / "net")).untrained_groups() == (0, 2)


def test_a_job_can_load_the_file_through_a_factory(tmp_path: Path) -> None:
    path = save(small_grouped(), tmp_path / "net.safetensors")
    loaded = load_object("potluck.model.decoupled:load", "task.model")(path=str(path))
    assert loaded(samples(2)[0]).shape == (2, 6)


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(ModelError, match="cannot read the network"):
        load(tmp_path / "text")
    with pytest.raises(ModelError, match="cannot read the network"):
        load(tmp_path / "absent")
    save_file({"a": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ModelError, match="does not contain an assembled network"):
        load(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('"kind":"Sequential"', "is a 'Sequential', not one of"),
        ('"kind":"ReLU","options":{"code":"x"}', "has no option 'code'"),
        ('"kind":"Linear","options":{"in_features":1000000000,"out_features":1000000000}', "does not match"),
    ],
)
def test_a_description_may_only_build_known_layers_matching_the_file(tmp_path: Path, change: str, message: str) -> None:
    grouped = small_grouped()
    description = msgspec.json.encode(grouped.spec).decode()
    assert '"kind":"ReLU","options":{}' in description
    spoiled = description.replace(
        '"kind":"ReLU","options":{}', change + ("" if "options" in change else ',"options":{}'), 1
    )
    save_file(grouped.state_dict(), tmp_path / "net", metadata={"potluck.decoupled": spoiled})
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "net")


def test_an_invalid_description_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "net", metadata={"potluck.decoupled": '{"shape": 3}'})
    with pytest.raises(ModelError, match="does not match its header"):
        load(tmp_path / "net")
