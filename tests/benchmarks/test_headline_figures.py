"""The table of figures that matter, and the README's part of it."""

from __future__ import annotations

import re

import pytest

from benchmarks import headline_figures
from benchmarks.benchmark_figures import Figure, PublishedValue, figure_of_repeats
from benchmarks.headline_figures import (
    HEADLINE_LIMIT,
    Headline,
    headline_rows,
    load_headlines,
    read_readme_table,
    readme_table,
    replace_readme_table,
)
from benchmarks.measured_code import code_digest
from benchmarks.result_files import BenchmarkResult, MeasuredCode, read_results
from tests.benchmarks.made_up_results import benchmarks_with_figures, full_figures
from tests.cli.calling import ROOT

_RESULTS = ROOT / "benchmarks" / "results"


def result(*figures: Figure, clean: bool = True) -> BenchmarkResult:
    return BenchmarkResult(
        name="own", summary="", mode="full", command="", date="2026-01-02", figures=figures, commit="0123456789abc",
        clean=clean, code=MeasuredCode(("Makefile",), code_digest(["Makefile"])),
    )  # fmt: skip


OURS = figure_of_repeats("speed", "x", [1.0, 2.0, 3.0], executed="live", published=PublishedValue(1.5, "Somebody 2020"))
THEIRS = figure_of_repeats("  theirs", "x", [1.0], executed="live")
HEADLINE = Headline(claim="how fast", benchmark="own", figure="speed", rival="speed: theirs", readme=True)


def test_a_row_has_claim_ours_with_interval_theirs_execution_and_commit() -> None:
    rows = headline_rows([HEADLINE], {"own": result(OURS, THEIRS)})
    assert rows == [
        "| how fast | 2 x (-0.4843 to 4.484, n = 3) | 1.5 x (published), 1 x (speed: theirs) | live | 012345678 |"
    ]


def test_a_result_that_is_not_current_quotes_no_value_of_ours() -> None:
    expected = "| how fast | being measured again | 1.5 x (published) |  |  |"
    assert headline_rows([HEADLINE], {"own": result(OURS, THEIRS, clean=False)}) == [expected]
    assert headline_rows([HEADLINE], {}) == ["| how fast | being measured again |  |  |  |"]
    assert "not part of this run" in headline_rows([HEADLINE], {"own": result(THEIRS)})[0]


def test_the_readme_quotes_only_current_figures_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Headline(claim="how small", benchmark="other", figure="size", readme=True)
    monkeypatch.setattr(headline_figures, "load_headlines", lambda: [HEADLINE, other])
    partly = readme_table({"own": result(OURS)})
    assert "| how fast | 2 x" in partly
    assert "how small" not in partly
    assert "1 of 2 are being measured again" in partly
    nothing = readme_table({})
    assert "they are being measured again, and none is quoted" in nothing
    assert "|" not in nothing


def test_the_readme_is_generated_from_the_table() -> None:
    readme = (ROOT / "README.md").read_text()
    assert read_readme_table(readme) == readme_table(read_results(_RESULTS)), "run `make results`"
    assert replace_readme_table(readme, read_readme_table(readme)) == readme


def test_the_readme_has_no_figures_outside_the_table() -> None:
    """A figure is a number with a unit of comparison; prose that needs one takes it from the table."""
    readme = (ROOT / "README.md").read_text()
    outside = readme.replace(read_readme_table(readme), "")
    assert not re.findall(r"\d+(?:\.\d+)? ?(?:%|points|x (?:fewer|faster|slower))", outside)


def test_headlines_are_distinct_and_name_figures_that_a_full_run_computes() -> None:
    headlines = load_headlines()
    assert 10 <= len(headlines) <= HEADLINE_LIMIT
    assert len({headline.claim for headline in headlines}) == len(headlines)
    assert len({(headline.benchmark, headline.figure) for headline in headlines}) == len(headlines)
    names = {name: set(full_figures(benchmark)) for name, benchmark in benchmarks_with_figures().items()}
    for headline in headlines:
        assert {headline.figure, headline.rival} - {""} <= names[headline.benchmark], headline.claim
