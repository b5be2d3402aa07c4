"""What the documents say works as they say it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from potluck import recipes
from potluck.job import load_job, make
from potluck.run.rounds_setup import RoundsSetup
from tests.cli.calling import ROOT, Shell

README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> Iterator[list[str]]:
    """Every call of Potluck in the README, in blocks and in lines of text, without its remark."""
    for written in re.findall(r"^potluck [^#\n]*|`potluck [^`]*`", README, re.MULTILINE):
        yield written.strip("` \n").split()[1:]


def test_every_command_is_one() -> None:
    import typer.main

    from potluck.cli.app import app

    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    found = [words for words in commands() if words]
    assert len(found) > 12
    for words in found:
        assert words[0] in known
        options = {option for each in known[words[0]].params for option in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= options


def test_the_first_commands_work_in_their_order(
    potluck: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert potluck("new", "mine").code == 0
    assert potluck("run", "mine/job.toml", "--quiet", "--set", "stop.rounds=2").code == 0
    assert potluck("plan", "mine/job.toml").code == 0
    (run,) = Path("runs").iterdir()
    assert potluck("report", run).code == 0
    assert (run / "report.html").exists()


def test_the_job_is_one() -> None:
    (written,) = blocks("toml")
    assert make(tomllib.loads(written)).fleet.faults


def test_the_python_runs() -> None:
    (written,) = blocks("python")
    x, y = torch.rand(64, 4), torch.arange(64) % 2

    def small() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 2))

    names = {"MyNet": small, "x": x, "y": y, "x_test": x, "y_test": y}
    exec(written, names)
    assert names["result"].summary["rounds"] == 30  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.split("#")[0]).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", ["dynacomm", "ftpipehd", "scadles"])
def test_an_example_plans_and_names_its_rivals(name: str) -> None:
    place = ROOT / "examples" / name / "job.toml"
    job = load_job(place)
    assert job.recipe == name
    for rival in re.findall(r"--set recipe=([\w-]+)", place.read_text()):
        assert rival in recipes.CATALOGUE
    if job.pipeline is None:
        assert RoundsSetup.from_job(job, None, None).costs.layer_count > 1


@pytest.mark.long
@pytest.mark.parametrize(("name", "accuracy"), [("dynacomm", 0.93), ("ftpipehd", 0.8), ("scadles", 0.9)])
def test_an_example_trains(potluck: Shell, tmp_path: Path, name: str, accuracy: float) -> None:
    found = potluck("run", ROOT / "examples" / name, "--json", "--out", tmp_path / "run")
    assert found.code == 0
    assert found.json["accuracy"] >= accuracy
