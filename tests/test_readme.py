"""The README, the docs and the examples are consistent: links, line widths, figures, examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from potluck import recipes
from potluck.job import load_job
from potluck.run.rounds_setup import RoundsSetup
from tests.cli.calling import ROOT, Shell

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = ROOT / "docs" / "results.md"


@pytest.fixture
def potluck(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def prose(page: Path) -> str:
    """The text without code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub derives from the page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", [page for page in PAGES if page != RESULTS], ids=lambda page: page.name)
def test_prose_is_wrapped(page: Path) -> None:
    lines = [line for line in prose(page).splitlines() if not line.startswith(("|", "#", "!", "**`", "- [", "`["))]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("name", ["dynacomm", "ftpipehd", "scadles"])
def test_an_example_plans_and_names_its_rivals(name: str) -> None:
    path = ROOT / "examples" / name / "job.toml"
    job = load_job(path)
    assert job.recipe == name
    for rival in re.findall(r"--set recipe=([\w-]+)", path.read_text()):
        assert rival in recipes.CATALOGUE
    if job.pipeline is None:
        assert RoundsSetup.from_job(job, None, None).costs.layer_count > 1


@pytest.mark.long
@pytest.mark.parametrize(("name", "accuracy"), [("dynacomm", 0.93), ("ftpipehd", 0.8), ("scadles", 0.9)])
def test_an_example_trains(potluck: Shell, tmp_path: Path, name: str, accuracy: float) -> None:
    outcome = potluck("run", ROOT / "examples" / name, "--json", "--out", tmp_path / "run")
    assert outcome.code == 0
    assert outcome.json["accuracy"] >= accuracy
