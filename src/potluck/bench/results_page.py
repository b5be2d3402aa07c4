"""The page of results: every benchmark's figures beside the published ones, from the files that `potluck bench` wrote.

Quick runs are shown and marked, and nothing is claimed from them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from potluck import bench
from potluck.bench.benchmark_figures import Figure, format_value
from potluck.errors import UserError

__all__ = ["BenchmarkResult", "published_verdict", "read_results", "render_results_page"]

Verdict = Literal["beaten", "reproduced", "short"]
_ALIKE = 0.02  # within this share of the published value it is reproduced
_TITLES = {
    "simulation": "The simulated world",
    "transport": "Transport",
    "live": "Live runs",
    "overlap": "DynaComm",
    "pipeline": "FTPipeHD",
    "streaming": "ScaDLES",
    "dropout": "DISTREAL",
    "decoupled": "Decoupled collaboration",
}
_PAGES = {
    "overlap": "methods/dynacomm.md",
    "pipeline": "methods/ftpipehd.md",
    "streaming": "methods/scadles.md",
    "dropout": "methods/distreal.md",
    "decoupled": "methods/decoupled.md",
}
_HEAD = """\
# Results
*Written by `make results` from the files in [bench/results](../bench/results/); do not edit it by hand.*

Each table has what was published, what we aimed at, what was measured, and whether that holds. Virtual times, counts
and arithmetic repeat to the last bit with the same command; what is taken with a clock has its spread in brackets.
`--quick` instead of `--full` takes minutes and is not to be quoted. Where a network was made smaller so that it trains
on two cores, or a published one is only timed, the notes below its table say so.
"""


class BenchmarkResult(msgspec.Struct, frozen=True, kw_only=True):
    """A finished benchmark as it was written; keys that the page has no use for are passed over."""

    name: str
    summary: str
    mode: Literal["quick", "full"]
    command: str
    date: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()
    machine: Mapping[str, Any] = {}
    versions: Mapping[str, str] = {}

    @property
    def is_quick(self) -> bool:
        return self.mode == "quick"


class NamedFigure(NamedTuple):
    """A figure with the one that it stands below, which its own name alone would not tell apart."""

    benchmark: str
    name: str
    figure: Figure


def read_results(folder: Path) -> dict[str, BenchmarkResult]:
    """All results of a folder by name: those of the catalogue in its order, then the others."""
    found = {path.stem: _read_result(path) for path in sorted(folder.glob("*.json"))}
    order = [
        *(name for name in bench.benchmark_names() if name in found),
        *(name for name in found if name not in bench.benchmark_names()),
    ]
    return {name: found[name] for name in order}


def _read_result(path: Path) -> BenchmarkResult:
    try:
        return msgspec.convert(json.loads(path.read_text()), BenchmarkResult)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a benchmark's result ({error}); remove it or run the benchmark again") from None


def render_results_page(folder: Path, place: Path) -> str:
    """The page on what lies in the folder, with links that hold at its place."""
    results = read_results(folder)
    sections = [_benchmark_section(result, folder, place.parent) for result in results.values()]
    return (
        "\n".join([_HEAD, *_standing_lines(list(results.values())), *sections, *_missing_lines(results)]).rstrip()
        + "\n"
    )


def published_verdict(figure: Figure) -> Verdict | None:
    """How the figure stands to the published one; the goal says which way is better, so without one there is none."""
    if figure.goal is None or figure.published is None:
        return None
    ours, theirs = figure.measured, figure.published.value
    ahead = ours - theirs if figure.goal.comparison == "≥" else theirs - ours
    margin = _ALIKE * abs(theirs)
    return "beaten" if ahead > margin else "reproduced" if ahead >= -margin else "short"


def _format_amount(value: float, unit: str) -> str:
    return f"{format_value(value)} {unit}".strip()


# --- what is reproduced, beaten, and falls short ---------------------------------------------------------------------


def _standing_lines(results: Sequence[BenchmarkResult]) -> Iterator[str]:
    named = [each for result in results if not result.is_quick for each in _named_figures(result)]
    judged = [each for each in named if each.figure.meets_goal is not None]
    held = sum(each.figure.meets_goal is True for each in judged)
    yield f"**{held} of {len(judged)} goals hold.** Quick runs are not counted.\n"
    yield from _bullet_list(
        "Beaten, by more than 2 %",
        [_comparison_line(each) for each in named if published_verdict(each.figure) == "beaten"],
    )
    yield from _bullet_list(
        "Reproduced", [_comparison_line(each) for each in named if published_verdict(each.figure) == "reproduced"]
    )
    yield from _bullet_list(
        "Falls short", [_shortfall_line(each) for each in judged if each.figure.meets_goal is False]
    )


def _named_figures(result: BenchmarkResult) -> Iterator[NamedFigure]:
    above = ""
    for figure in result.figures:
        name = figure.name.strip()
        if figure.name.startswith(" "):
            name = f"{above}: {name}"
        else:
            above = name
        yield NamedFigure(result.name, name, figure)


def _bullet_list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}**", *(f"- {line}" for line in lines), ""] if lines else []


def _comparison_line(named: NamedFigure) -> str:
    assert named.figure.published is not None
    unit = named.figure.unit
    ours, theirs = _format_amount(named.figure.measured, unit), _format_amount(named.figure.published.value, unit)
    return f"`{named.benchmark}` {named.name}: {ours}, published {theirs}"


def _shortfall_line(named: NamedFigure) -> str:
    figure = named.figure
    assert figure.goal is not None
    goal = f"{figure.goal.comparison} {_format_amount(figure.goal.value, figure.unit)}"
    measured = _format_amount(figure.measured, figure.unit)
    return f"`{named.benchmark}` {named.name}: {measured}, goal {goal}. {_shortfall_reason(named)}"


def _shortfall_reason(named: NamedFigure) -> str:
    """Kept by hand beside this file; a reason may be given for the figure's full name or for its own part of it."""
    known = _load_reasons().get(named.benchmark, {})
    return known.get(named.name) or known.get(named.figure.name.strip()) or "Not explained yet."


def _load_reasons() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((resources.files("potluck.bench") / "reasons.toml").read_text())


# --- one benchmark ---------------------------------------------------------------------------------------------------


def _benchmark_section(result: BenchmarkResult, folder: Path, at: Path) -> str:
    heading = f"## {_TITLES.get(result.name, result.name)}"
    quick = ["**QUICK: a smaller workload, not to be quoted.**", ""] if result.is_quick else []
    return "\n".join(
        [
            heading,
            *quick,
            _method_line(result),
            "",
            *_figure_table(result),
            *_remark_lines(result),
            *_picture_lines(result, folder, at),
        ]
    )


def _method_line(result: BenchmarkResult) -> str:
    cores, processor = result.machine.get("cores", "?"), result.machine.get("processor", "?")
    torch = result.versions.get("torch")
    where = f"{cores} cores of {processor}" + (f", torch {torch}" if torch else "")
    method = f" What it is: [{_PAGES[result.name]}]({_PAGES[result.name]})." if result.name in _PAGES else ""
    return f"{_as_sentence(result.summary)} `{result.command}` on {result.date[:10]}, {where}.{method}"


def _as_sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def _figure_table(result: BenchmarkResult) -> Iterator[str]:
    yield "| figure | published | goal | measured | held |"
    yield "|---|---|---|---|---|"
    for figure in result.figures:
        published = _format_amount(figure.published.value, figure.unit) if figure.published else ""
        goal = f"{figure.goal.comparison} {_format_amount(figure.goal.value, figure.unit)}" if figure.goal else ""
        held = {None: "", True: "yes", False: "**no**"}[figure.meets_goal]
        yield f"| {_table_cell(figure.name)} | {published} | {goal} | {_measured_text(figure)} | {held} |"
    yield ""


def _table_cell(name: str) -> str:
    escaped = name.strip().replace("|", "\\|")
    return f"&nbsp;&nbsp;{escaped}" if name.startswith(" ") else escaped


def _measured_text(figure: Figure) -> str:
    spread = figure.spread
    value = _format_amount(figure.measured, figure.unit)
    if spread is None or spread.repeats == 1:
        return value
    return f"{value} ({format_value(spread.low)} to {format_value(spread.high)}, {spread.repeats} repeats)"


def _remark_lines(result: BenchmarkResult) -> Iterator[str]:
    sources = dict.fromkeys(figure.published.source for figure in result.figures if figure.published)
    yield from (f"- Published: {source}" for source in sources)
    yield from (f"- {named.name}: {named.figure.note}" for named in _named_figures(result) if named.figure.note)
    yield from (f"- {note}" for note in result.notes)
    yield ""


def _picture_lines(result: BenchmarkResult, folder: Path, at: Path) -> Iterator[str]:
    picture = folder / f"{result.name}.svg"
    if picture.exists():
        yield f"![{result.name}]({Path(os.path.relpath(picture, at)).as_posix()})"
        yield ""


def _missing_lines(results: Mapping[str, BenchmarkResult]) -> Iterator[str]:
    missing = [name for name in bench.benchmark_names() if name not in results]
    if missing:
        yield "## Not measured yet"
    for name in missing:
        entry = bench.CATALOGUE[name]
        yield f"- {_as_sentence(entry.summary)} `potluck bench {name} --full`"
