from __future__ import annotations

from pathlib import Path

import pytest

from potluck.recipes import CATALOGUE
from tests.cli.calling import Shell


def test_the_files_run_as_they_are(potluck: Shell, tmp_path: Path) -> None:
    found = potluck("new", tmp_path / "mine")
    assert found.code == 0
    assert f"potluck run {tmp_path / 'mine' / 'job.toml'}" in found.out
    run = potluck("run", tmp_path / "mine/job.toml", "--json", "--out", tmp_path / "run")
    assert run.code == 0
    assert run.json["accuracy"] >= 0.95


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_they_run_with_any_recipe(potluck: Shell, tmp_path: Path, recipe: str) -> None:
    potluck("new", tmp_path)
    words = ("run", tmp_path, "-q", "--out", tmp_path / "run", "--timing-only", "--set", "stop.rounds=3")
    assert potluck(*words, "--set", f"recipe={recipe}").code == 0


def test_nothing_is_overwritten(potluck: Shell, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("mine")
    assert potluck("new", tmp_path).code == 2
    assert (tmp_path / "fleet.toml").read_text() == "mine"
    assert not (tmp_path / "job.toml").exists()


def test_json(potluck: Shell, tmp_path: Path) -> None:
    files = potluck("new", tmp_path, "--json").json["files"]
    assert files == [str(tmp_path / name) for name in ("job.toml", "fleet.toml", "job.schema.json")]
