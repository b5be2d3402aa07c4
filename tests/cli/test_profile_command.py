from __future__ import annotations

from pathlib import Path

import pytest

from potluck.model.model_profile import load_profile
from tests.cli.calling import Shell


def test_a_preset_gives_derived_seconds(potluck: Shell, tmp_path: Path) -> None:
    result = potluck("profile", "lenet", "--device", "pi4", "--batch", "8", "--out", tmp_path / "lenet.json")
    assert "lenet, batch of 8, derived for pi4" in result.out
    assert "conv1" in result.out
    saved = load_profile(tmp_path / "lenet.json")
    assert saved.totals.forward_s == pytest.approx(2 * saved.totals.macs * 8 / 12e9)


def test_measuring_needs_no_device(potluck: Shell) -> None:
    profile = potluck("profile", "mlp", "--measure", "--batch", "4", "--json").json
    assert profile["source"] == "measured"
    assert sum(layer["forward_s"] for layer in profile["layers"]) > 0


def test_another_shape(potluck: Shell) -> None:
    small, large = (potluck("profile", "resnet20", "--shape", shape, "--json").json for shape in ("3x16x16", "3x32x32"))
    assert sum(layer["macs"] for layer in large["layers"]) > 3 * sum(layer["macs"] for layer in small["layers"])


def test_a_jobs_own_task_is_profiled_by_its_model(potluck: Shell, folder: Path) -> None:
    """Building the task reads its data, so only the model may be built without memory."""
    (folder / "job.toml").write_text('task = "tests.run.user_parts:build_task"\n')
    profile = potluck("profile", "job.toml", "--json").json
    assert profile["model"] == "own"
    assert sum(layer["macs"] for layer in profile["layers"]) > 0


def test_models_of_tokens_are_profiled_by_name_and_by_job(potluck: Shell, folder: Path) -> None:
    (folder / "job.toml").write_text('[task]\nmodel = "gpt"\ndata = "generated-language:vocabulary=9,block=12"\n')
    by_name, by_job = (potluck("profile", model, "--json").json for model in ("gpt", "job.toml"))
    assert by_name["layers"][0]["param_bytes"] == 65 * 128 * 4
    assert by_job["layers"][0]["param_bytes"] == 9 * 128 * 4
    assert by_job["layers"][1]["param_bytes"] == 12 * 128 * 4
