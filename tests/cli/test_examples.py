from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.cli.calling import ROOT, Shell


def test_own_model(capsys: pytest.CaptureFixture[str]) -> None:
    names = runpy.run_path(str(ROOT / "examples/own_model.py"))
    assert names["result"].status == "done"
    assert names["result"].summary["accuracy"] >= 0.9
    assert "Linear(in_features=20" in capsys.readouterr().out
    assert len((ROOT / "examples/own_model.py").read_text().splitlines()) <= 25


def test_digits_with_faults(potluck: Shell, tmp_path: Path) -> None:
    found = potluck("run", ROOT / "examples/digits", "--json", "--out", tmp_path / "run")
    assert found.code == 0
    assert found.json["accuracy"] >= 0.93
    assert any(device.get("lost") for device in found.json["devices"].values())
