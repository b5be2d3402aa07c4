from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from potluck.cli import doctor_command
from tests.cli.calling import Shell


def _states(potluck: Shell, *arguments: str) -> dict[str, str]:
    return {one["what"]: one["state"] for one in potluck("doctor", "--json", *arguments).json["findings"]}


def test_a_working_installation_is_ready(potluck: Shell, folder: Path) -> None:
    result = potluck("doctor")
    assert result.code == 0
    assert "ready: try `potluck demo`" in result.out
    states = _states(potluck)
    assert {"python", "torch", "packages", "runs", "data", "disk"} <= set(states)
    assert not (folder / "runs").exists()


def test_a_missing_dependency_is_reported_with_its_install_command(
    potluck: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def without(name: str) -> str:
        if name == "scikit-learn":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    result = potluck("doctor")
    assert result.code == 0
    assert "without scikit-learn: pip install 'potluck[digits]'" in result.out


def test_data_is_looked_up_in_the_given_folder(potluck: Shell, tmp_path: Path) -> None:
    assert f"searched for in {tmp_path}" in potluck("doctor", "--data", tmp_path).out
    assert _states(potluck, "--data", str(tmp_path))["data mnist"] == "missing"


def test_an_unwritable_runs_folder_is_not_ready(potluck: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = potluck("doctor", "--runs", tmp_path / "file")
    assert result.code == 1
    assert "cannot be written" in result.out
    assert "not ready" in result.out


def test_without_torch_the_install_command_is_shown(potluck: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (_, torch) = doctor_command._check_python()
    assert torch.state == doctor_command.BAD
    assert "pip install torch" in torch.detail
