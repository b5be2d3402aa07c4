"""`potluck explore`, called through its command function."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from potluck.cli.explore_command import explore_command
from potluck.errors import SettingError
from potluck.explore import Exploration
from potluck.job import load_job
from potluck.model.submodels.submodel_parts import FilterDropout
from potluck.planning.pareto_table import ParetoTable
from tests.cli.calling import FLEET, JOB, Shell

QUICK = [
    "population=6", "generations=2", "uniform=3", "batches=2", "warmup=2", "repeats=1", "held_out=50", "processes=0",
]  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def call(*arguments: object) -> str:
    app = typer.Typer()
    app.command()(explore_command)
    options = [argument for option in QUICK for argument in ("--with", option)]
    return CliRunner().invoke(app, [*map(str, arguments), *options], catch_exceptions=False).stdout


def test_explore_writes_a_table_and_prints_its_quality(job: Path) -> None:
    output = call(job, "--out", job / "table.json", "--proxy", "alignment")
    assert "more than with one rate for all layers" in output
    assert "rank correlation of the proxy" in output
    assert ParetoTable.load(job / "table.json").sets == ("linear1",)
    assert (job / "table.json.evaluations.jsonl").exists()
    assert "one rate for all layers" in (job / "table.svg").read_text(encoding="utf-8")


def test_json_is_one_object_and_repeated_calls_agree(job: Path) -> None:
    first, second = (json.loads(call(job, "--out", job / "table.json", "--json")) for _ in range(2))
    assert first == second
    assert first["hypervolume"] >= first["uniform_hypervolume"]


def test_the_table_can_be_used_as_the_output_says(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, potluck: Shell
) -> None:
    """From another folder, with the printed text: on the command line and in the job."""
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    last = call(job, "--out", "my table.json").splitlines()[-1]
    table = ParetoTable.load(Path("my table.json"))
    arguments = shlex.split(re.findall(r"use it with (.*) or in job.toml", last)[0])
    assert arguments[::2] == ["--set", "--set"]
    assert potluck("run", job, "--quiet", "--out", "run", *arguments).code == 0
    assert load_job(Path("run/job.toml")).rounds.submodel == FilterDropout(table=table)
    with (job / "job.toml").open("a") as file:
        file.write("[rounds]\n" + re.findall(r"submodel = .*", last)[0])
    assert load_job(job / "job.toml").rounds.submodel == FilterDropout(table=table)


def test_exploration_uses_the_training_settings_of_the_job_unless_overridden(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorations: list[Exploration] = []

    def search(task: object, settings: Exploration, **_: object) -> None:
        explorations.append(settings)
        raise SettingError("", "seen enough")

    monkeypatch.setattr("potluck.explore.explore", search)
    sets = [
        "recipe=distreal-ordered",
        "rounds.batching.size=5",
        "rounds.local.lr=0.3",
        "rounds.submodel.grid=4",
        "seed=7",
    ]
    arguments = [argument for setting in sets for argument in ("--set", setting)]
    for more in ([], ["--with", "lr=0.1", "--with", "units=random", "--with", "momentum=0.5"]):
        with pytest.raises(SettingError, match="seen enough"):
            call(job, *arguments, *more)
    unchanged, changed = explorations
    assert (unchanged.batch, unchanged.lr, unchanged.momentum, unchanged.seed) == (5, 0.3, 0.0, 7)
    assert (unchanged.units, unchanged.scaled, unchanged.static, unchanged.grid) == ("leading", False, False, 4)
    assert (changed.batch, changed.lr, changed.momentum, changed.units) == (5, 0.1, 0.5, "random")


def test_the_search_starts_from_a_run_and_then_without_a_warm_up(
    job: Path, monkeypatch: pytest.MonkeyPatch, potluck: Shell
) -> None:
    seen: list[tuple[Path | None, int]] = []

    def search(task: object, settings: Exploration, *, start: Path | None, **_: object) -> None:
        seen.append((start, settings.warmup))
        raise SettingError("", "seen enough")

    monkeypatch.setattr("potluck.explore.explore", search)
    monkeypatch.setattr(f"{__name__}.QUICK", [])
    for more in ([], ["--from", "run"], ["--set", f"start={job}"], ["--from", "run", "--with", "warmup=5"]):
        with pytest.raises(SettingError, match="seen enough"):
            call(job, *more)
    assert seen == [(None, 128), (Path("run"), 0), (job, 0), (Path("run"), 5)]


def test_a_run_resumes_with_a_table_that_was_explored_from_it(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, potluck: Shell
) -> None:
    monkeypatch.chdir(tmp_path)
    ordered = ["--set", "recipe=distreal-ordered", "--set", "evaluate=0"]
    assert potluck("run", job, "--quiet", "--out", "run", *ordered, "--set", "stop.rounds=2").code == 0
    call(job, *ordered[:2], "--from", "run", "--out", "later.json")
    later = ["--set", "rounds.submodel.table=later.json", "--set", "stop.rounds=4"]
    assert potluck("resume", "run", "--quiet", *later).code == 0
    assert load_job(Path("run/job.toml")).rounds.submodel.table == ParetoTable.load(Path("later.json"))  # type: ignore[attr-defined]
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["rounds"] == 4


def test_an_unknown_option_is_named(job: Path) -> None:
    with pytest.raises(SettingError, match=r"explore\.crowd"):
        call(job, "--with", "crowd=3")
