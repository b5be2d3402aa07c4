"""A run that starts from the weights of another, with any recipe, interrupted or not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import potluck
from potluck.errors import SettingError
from potluck.job import dump_job, load_job, make
from potluck.model.decoupled import GroupedNetwork
from potluck.model.decoupled.class_groups import ClassGroups
from potluck.run.prepared_job import prepare_job
from potluck.run.rounds_setup import RoundsSetup
from tests.simulation.runs import journal

JOB: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {
        "model": "mlp", "data": {"kind": "synthetic", "train": 400, "test": 50}, "options": {"hidden": [20, 20]},
    },
    "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]},
    "stop": {"rounds": 3},
}  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    potluck.simulate(JOB, folder=tmp_path / "before", threads=0)
    return tmp_path / "before"


def test_a_run_saves_its_network(trained: Path) -> None:
    result = potluck.simulate(JOB, threads=0)
    assert result.module is not None
    weights = load_file(trained / "model.safetensors")
    assert weights.keys() == result.module.state_dict().keys()
    assert all(torch.equal(value, weights[name]) for name, value in result.module.state_dict().items())


@pytest.mark.parametrize("recipe", ["fedavg", "sync-sgd", "heterofl", "ftpipehd"])
def test_every_recipe_starts_from_the_given_weights(trained: Path, tmp_path: Path, recipe: str) -> None:
    weights = torch.cat([value.flatten() for value in load_file(trained / "model.safetensors").values()])
    for start, equal in ((trained, True), (trained / "model.safetensors", True), (None, False)):
        tables = {**JOB, "recipe": recipe, "stop": {"rounds": 1}, **({"start": str(start)} if start else {})}
        setup = prepare_job(make(tables), None, None)
        state = setup.server.tensors()
        initial = torch.cat([state["params"], state["buffers"]])
        assert torch.equal(initial.sort().values, weights.sort().values) == equal
    assert potluck.simulate(tables, threads=0).status == "done"


def test_class_groups_keep_the_trained_weights(trained: Path) -> None:
    submodel = {"groups": 2, "trunk": "frozen"}
    tables = {**JOB, "recipe": "decoupled", "start": str(trained), "rounds": {"submodel": submodel}}
    result = potluck.simulate(tables, threads=0)
    assert isinstance(result.module, GroupedNetwork)
    weights, first = load_file(trained / "model.safetensors"), next(iter(result.module.trunk.parameters()))
    assert any(torch.equal(first, value) for value in weights.values())


def test_classes_with_similar_features_are_grouped(trained: Path, tmp_path: Path) -> None:
    """By their features in the trained trunk, not by their inputs; every device gets the groups."""
    submodel = {"groups": 5, "alike": True, "depth": 2}
    tables = {**JOB, "recipe": "decoupled", "rounds": {"submodel": submodel}, "split": "class-groups"}
    looks = RoundsSetup.from_job(make(tables), None, None)
    setup = RoundsSetup.from_job(make({**tables, "start": str(trained)}), None, None)
    part = setup.job.rounds.submodel
    assert isinstance(part, ClassGroups)
    assert isinstance(looks.module, GroupedNetwork)
    assert isinstance(setup.module, GroupedNetwork)
    assert part.groups == setup.module.spec.groups != looks.module.spec.groups
    assert setup.data is not None
    with torch.no_grad():
        features = setup.module.trunk(setup.data.train.batch(np.arange(400))[0])
    labels = torch.from_numpy(setup.data.train.labels)
    means = torch.stack([features[labels == label].mean(dim=0) for label in range(10)])
    assert _spread(means, setup.module.spec.groups) < _spread(means, looks.module.spec.groups)
    device_setup = RoundsSetup.from_job(setup.job, None, None, load_weights=False)
    assert all(np.array_equal(device_setup.shards[name], shard) for name, shard in setup.shards.items())


def _spread(means: torch.Tensor, groups: Any) -> float:
    return float(sum((means[list(group)] - means[list(group)].mean(dim=0)).square().sum() for group in groups))


def test_a_stopped_run_resumes_without_the_initial_weights(trained: Path, tmp_path: Path) -> None:
    tables = {**JOB, "start": str(trained), "checkpoint": 1}
    uninterrupted = potluck.simulate(tables, folder=tmp_path / "whole", threads=0)
    times: list[float] = []
    potluck.simulate(
        tables, folder=tmp_path / "cut", threads=0,
        watch=lambda store, now: times.append(now), stopping=lambda: len(times) >= 2,
    )  # fmt: skip
    (trained / "model.safetensors").unlink()
    resumed = potluck.resume(tmp_path / "cut", threads=0)
    assert journal(tmp_path / "whole") == journal(tmp_path / "cut")
    assert resumed.summary["loss"] == uninterrupted.summary["loss"]


def test_the_path_is_relative_to_the_job_or_to_the_current_folder(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a job it is relative to the job file, on the command line to the current folder."""
    text = dump_job(make(JOB))
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "job.toml").write_text(f'start = "../before"\n{text}')
    monkeypatch.chdir(tmp_path)
    assert load_job(tmp_path / "jobs" / "job.toml").start == str(trained)
    (tmp_path / "jobs" / "job.toml").write_text(text)
    assert load_job(tmp_path / "jobs" / "job.toml", ["start=before"]).start == str(trained)


def test_weights_that_do_not_fit_are_refused_before_the_run(trained: Path, tmp_path: Path) -> None:
    wider = {**JOB["task"], "options": {"hidden": [30, 20]}}
    with pytest.raises(SettingError, match=r"^start: the weights in .* has shape \(20, .*not \(30, "):
        RoundsSetup.from_job(make({**JOB, "task": wider, "start": str(trained)}), None, None)
    with pytest.raises(SettingError, match=r"^start: .*nowhere"):
        RoundsSetup.from_job(make({**JOB, "start": str(tmp_path / "nowhere")}), None, None)
    RoundsSetup.from_job(
        make({**JOB, "start": str(tmp_path / "nowhere")}), None, None, load_weights=False
    )  # as on a device


@pytest.mark.parametrize("submodel", [{"trunk": "frozen"}, {"variant": "attributed"}])
def test_new_weights_cause_a_warning_where_trained_ones_are_expected(
    trained: Path, caplog: pytest.LogCaptureFixture, submodel: dict[str, Any]
) -> None:
    tables = {**JOB, "recipe": "decoupled", "rounds": {"submodel": submodel}}
    (key,) = submodel
    with caplog.at_level(logging.WARNING, "potluck"):
        RoundsSetup.from_job(make(tables), None, None)
    (warning,) = caplog.messages
    assert warning.startswith(f"rounds.submodel.{key}: ")
    assert "`start`" in warning
    caplog.clear()
    with caplog.at_level(logging.WARNING, "potluck"):
        RoundsSetup.from_job(make({**tables, "start": str(trained)}), None, None)
        RoundsSetup.from_job(make(tables), None, None, load_weights=False)  # a device, or a resumed run
        RoundsSetup.from_job(make({**tables, "rounds": {}}), None, None)
        setup = RoundsSetup.from_job(make(JOB), None, None)
        assert setup.data is not None
        assert setup.module is not None
        RoundsSetup.from_job(make(tables), potluck.Task(setup.module, setup.data), None)
    assert caplog.messages == []
