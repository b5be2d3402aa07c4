from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import FLEET, JOB, Shell


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a small job and fleet in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path
