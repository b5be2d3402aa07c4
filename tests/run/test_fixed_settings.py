"""What a run's data and random numbers follow from cannot change when it is resumed; the key is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.errors import SettingError
from potluck.job import dump_job, make
from potluck.run.run_opening import load_run_job
from tests.cli.calling import Shell
from tests.live.live_scenarios import SMALL

STREAM = {**SMALL, "stream": {"rate": {"kind": "constant", "per_second": 40.0}}}
TEXT = {**SMALL, "task": {"model": "gpt", "data": {"kind": "text", "path": "here"}}}
PIPELINE = {**SMALL, "recipe": "ftpipehd", "pipeline": {"batch": 8}}
del PIPELINE["rounds"]


def _load(folder: Path, job: dict[str, Any], *overrides: str) -> potluck.Job:
    """The job of a run as `resume` loads it."""
    (folder / "job.toml").write_text(dump_job(make(job)))
    (folder / "journal.jsonl").touch()
    return load_run_job(folder, overrides)


REFUSED = [
    (SMALL, "seed=9", "seed", "it is 0"),
    (SMALL, "task.options.hidden=[17]", "task.options.hidden", "it is [16]"),
    (SMALL, "task.data.classes=4", "task.data.classes", "it is 10"),
    (SMALL, "task.loss=mse", "task.loss", "it is cross-entropy"),
    (SMALL, "task=tests.run.user_parts:build_task", "task", "it is {"),
    (SMALL, "split.kind=shards", "split.kind", "it is iid"),
    ({**SMALL, "split": {"kind": "dirichlet", "alpha": 0.3}}, "split.alpha=0.5", "split.alpha", "it is 0.3"),
    (SMALL, "start=model.safetensors", "start", "it was not set"),
    (SMALL, "timing_only=true", "timing_only", "it is False"),
    (SMALL, 'fleet.devices=[{name="d", count=5, flops="1 GFLOP/s"}]', "fleet.devices", "it is d-0, d-1, d-2, d-3"),
    (SMALL, "stream.rate.kind=constant", "stream", "it was not set"),
    (STREAM, "stream.rate.per_second=80", "stream.rate.per_second", "it is 40.0"),
    (SMALL, "pipeline.batch=8", "pipeline", "it was not set"),
]


@pytest.mark.parametrize(("job", "override", "path", "value"), REFUSED, ids=[case[1] for case in REFUSED])
def test_what_the_run_follows_from_is_refused(
    tmp_path: Path, job: dict[str, Any], override: str, path: str, value: str
) -> None:
    with pytest.raises(SettingError) as refused:
        _load(tmp_path, job, override)
    assert refused.value.path == path
    assert f"cannot change in a run ({value}" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("job", "override"),
    [
        (SMALL, "seed=0"),
        (SMALL, "stop.rounds=50"),
        (SMALL, "rounds.local.lr=0.01"),
        (SMALL, "evaluate=2"),
        (SMALL, "fleet.faults=[]"),
        (SMALL, 'fleet.devices=[{name="d", count=4, flops="1 GFLOP/s"}]'),
        (SMALL, 'task.metrics=["top-5"]'),
        (TEXT, "task.data.path=there"),
        (STREAM, "stream.buffer.kind=persistence"),
        (PIPELINE, 'fleet.devices=[{name="d", count=5, flops="1 GFLOP/s"}]'),
    ],
)
def test_everything_else_may_change(tmp_path: Path, job: dict[str, Any], override: str) -> None:
    assert isinstance(_load(tmp_path, job, override), potluck.Job)


def test_the_command_names_the_key_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    potluck.simulate(SMALL, folder=tmp_path / "run", threads=0)
    refused = Shell(capsys)("resume", tmp_path / "run", "--set", "seed=9")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert refused.err.startswith("error: seed: cannot change in a run (it is 0), because all random numbers")
