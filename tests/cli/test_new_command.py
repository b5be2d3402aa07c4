from __future__ import annotations

from pathlib import Path

import pytest

from potluck.journal import Instant, read_journal
from potluck.recipes import CATALOGUE
from tests.cli.calling import Shell


def test_the_starter_files_run_unchanged(potluck: Shell, tmp_path: Path) -> None:
    result = potluck("new", tmp_path / "mine")
    assert result.code == 0
    assert f"potluck run {tmp_path / 'mine' / 'job.toml'}" in result.out
    run = potluck("run", tmp_path / "mine/job.toml", "--json", "--out", tmp_path / "run")
    assert run.code == 0
    assert run.json["accuracy"] >= 0.95
    assert run.json["devices"]["old-tablet"]["lost"] == 1


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_the_faults_of_the_starter_job_occur(potluck: Shell, tmp_path: Path, seed: str) -> None:
    potluck("new", tmp_path)
    text = potluck("run", tmp_path, "--out", tmp_path / "run", "--seed", seed).out
    rows = [line.split() for line in text.splitlines() if line.startswith(("pi4-", "old-tablet"))]
    assert len(rows) == 4
    assert sum(row[-1].isdecimal() for row in rows) >= 2, "the last column of a row counts losses"
    names = {
        (record.node, record.name)
        for record in read_journal(tmp_path / "run/journal.jsonl")
        if isinstance(record, Instant)
    }
    assert ("old-tablet", "leave") in names
    assert "crash" in {name for _, name in names}


def _remove_split(job: Path) -> None:
    """As the file's own comment says for pipelines."""
    kept = [line for line in job.read_text().splitlines() if not line.startswith(("[split]", "kind =", "alpha ="))]
    job.write_text("\n".join(kept))


@pytest.mark.parametrize("recipe", CATALOGUE)
def test_the_starter_files_run_with_any_recipe(potluck: Shell, tmp_path: Path, recipe: str) -> None:
    potluck("new", tmp_path)
    if "pipeline" in CATALOGUE[recipe].settings:
        refused = potluck("run", tmp_path, "-q", "--set", f"recipe={recipe}")
        assert refused.code == 2
        assert "split: has no effect in a pipeline" in refused.err
        _remove_split(tmp_path / "job.toml")
    arguments = ("run", tmp_path, "-q", "--out", tmp_path / "run", "--timing-only", "--set", "stop.rounds=3")
    told = potluck(*arguments, "--set", f"recipe={recipe}")
    if recipe == "lora-rank":
        assert told.code == 2
        assert "LoRA" in told.err, "the starter's network has no adapters"
    else:
        assert told.code == 0


def test_nothing_is_overwritten(potluck: Shell, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("mine")
    assert potluck("new", tmp_path).code == 2
    assert (tmp_path / "fleet.toml").read_text() == "mine"
    assert not (tmp_path / "job.toml").exists()


def test_json(potluck: Shell, tmp_path: Path) -> None:
    files = potluck("new", tmp_path, "--json").json["files"]
    assert files == [str(tmp_path / name) for name in ("job.toml", "fleet.toml", "job.schema.json")]
