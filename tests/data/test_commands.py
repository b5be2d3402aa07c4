from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from potluck.cli.data_command import app
from potluck.errors import DataError


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_list_shows_where_each_dataset_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("POTLUCK_DATA", raising=False)
    lines = _run("list", "--data", str(tmp_path)).splitlines()
    assert any(line.startswith("digits") and line.endswith("built in") for line in lines)
    assert any(line.startswith("cifar10 ") and "missing" in line for line in lines)
    assert {one["name"] for one in json.loads(_run("list", "--json"))} >= {"digits", "cifar10", "folder"}


def test_info_and_check_describe_a_dataset() -> None:
    assert "200 training, 50 test" in _run("info", "synthetic:train=200,test=50")
    assert json.loads(_run("info", "synthetic", "--json"))["options"]["classes"] == 10
    assert "is complete: 1,437 training and 360 test samples of 1x8x8" in _run("check", "digits")
    assert json.loads(_run("check", "digits", "--json"))["train"] == 1437


def test_errors_reach_the_caller(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mnist was not found"):
        _run("check", "mnist", "--data", str(tmp_path))


def test_importing_the_commands_loads_neither_torch_nor_numpy() -> None:
    program = (
        "import sys, potluck.cli.data_command; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


def test_info_shows_what_no_model_can_beat() -> None:
    shown = _run("info", "generated-language:skew=0,block=100")
    assert "100 tokens (vocabulary 16)" in shown
    assert "entropy:   1.3861 nats (perplexity 3.999)" in shown
    assert "best loss: 1.398" in shown
    assert "best acc.: 87.2%" in _run("info", "generated-topics")
    assert "400 test samples of 64 tokens (vocabulary 16), 8 owners" in _run("check", "generated-language")
