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
from potluck.bench.figures import Figure, written
from potluck.errors import UserError

__all__ = ["Result", "page", "read", "verdict"]

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


class Result(msgspec.Struct, frozen=True, kw_only=True):
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
    def quick(self) -> bool:
        return self.mode == "quick"


class Named(NamedTuple):
    """A figure with the one that it stands below, which its own name alone would not tell apart."""

    benchmark: str
    name: str
    figure: Figure


def read(folder: Path) -> dict[str, Result]:
    """All results of a folder by name: those of the catalogue in its order, then the others."""
    found = {path.stem: _result(path) for path in sorted(folder.glob("*.json"))}
    order = [*(name for name in bench.names() if name in found), *(name for name in found if name not in bench.names())]
    return {name: found[name] for name in order}


def _result(path: Path) -> Result:
    try:
        return msgspec.convert(json.loads(path.read_text()), Result)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a benchmark's result ({error}); remove it or run the benchmark again") from None


def page(folder: Path, place: Path) -> str:
    """The page on what lies in the folder, with links that hold at its place."""
    results = read(folder)
    sections = [_section(result, folder, place.parent) for result in results.values()]
    return "\n".join([_HEAD, *_standing(list(results.values())), *sections, *_missing(results)]).rstrip() + "\n"


def verdict(figure: Figure) -> Verdict | None:
    """How the figure stands to the published one; the goal says which way is better, so without one there is none."""
    if figure.goal is None or figure.published is None:
        return None
    ours, theirs = figure.measured, figure.published.value
    ahead = ours - theirs if figure.goal.comparison == "≥" else theirs - ours
    margin = _ALIKE * abs(theirs)
    return "beaten" if ahead > margin else "reproduced" if ahead >= -margin else "short"


def _amount(value: float, unit: str) -> str:
    return f"{written(value)} {unit}".strip()


# --- what is reproduced, beaten, and falls short ---------------------------------------------------------------------


def _standing(results: Sequence[Result]) -> Iterator[str]:
    named = [each for result in results if not result.quick for each in _named(result)]
    judged = [each for each in named if each.figure.held is not None]
    held = sum(each.figure.held is True for each in judged)
    yield f"**{held} of {len(judged)} goals hold.** Quick runs are not counted.\n"
    yield from _list("Beaten, by more than 2 %", [_beside(each) for each in named if verdict(each.figure) == "beaten"])
    yield from _list("Reproduced", [_beside(each) for each in named if verdict(each.figure) == "reproduced"])
    yield from _list("Falls short", [_short(each) for each in judged if each.figure.held is False])


def _named(result: Result) -> Iterator[Named]:
    above = ""
    for figure in result.figures:
        name = figure.name.strip()
        if figure.name.startswith(" "):
            name = f"{above}: {name}"
        else:
            above = name
        yield Named(result.name, name, figure)


def _list(title: str, lines: Sequence[str]) -> list[str]:
    return [f"**{title}**", *(f"- {line}" for line in lines), ""] if lines else []


def _beside(named: Named) -> str:
    assert named.figure.published is not None
    unit = named.figure.unit
    ours, theirs = _amount(named.figure.measured, unit), _amount(named.figure.published.value, unit)
    return f"`{named.benchmark}` {named.name}: {ours}, published {theirs}"


def _short(named: Named) -> str:
    figure = named.figure
    assert figure.goal is not None
    goal = f"{figure.goal.comparison} {_amount(figure.goal.value, figure.unit)}"
    return f"`{named.benchmark}` {named.name}: {_amount(figure.measured, figure.unit)}, goal {goal}. {_reason(named)}"


def _reason(named: Named) -> str:
    """Kept by hand beside this file; a reason may be given for the figure's full name or for its own part of it."""
    known = _reasons().get(named.benchmark, {})
    return known.get(named.name) or known.get(named.figure.name.strip()) or "Not explained yet."


def _reasons() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads((resources.files("potluck.bench") / "reasons.toml").read_text())


# --- one benchmark ---------------------------------------------------------------------------------------------------


def _section(result: Result, folder: Path, at: Path) -> str:
    heading = f"## {_TITLES.get(result.name, result.name)}"
    quick = ["**QUICK: a smaller workload, not to be quoted.**", ""] if result.quick else []
    return "\n".join(
        [heading, *quick, _how(result), "", *_table(result), *_remarks(result), *_picture(result, folder, at)]
    )


def _how(result: Result) -> str:
    cores, processor = result.machine.get("cores", "?"), result.machine.get("processor", "?")
    torch = result.versions.get("torch")
    where = f"{cores} cores of {processor}" + (f", torch {torch}" if torch else "")
    method = f" What it is: [{_PAGES[result.name]}]({_PAGES[result.name]})." if result.name in _PAGES else ""
    return f"{_sentence(result.summary)} `{result.command}` on {result.date[:10]}, {where}.{method}"


def _sentence(summary: str) -> str:
    return f"{summary[:1].upper()}{summary[1:]}."


def _table(result: Result) -> Iterator[str]:
    yield "| figure | published | goal | measured | held |"
    yield "|---|---|---|---|---|"
    for figure in result.figures:
        published = _amount(figure.published.value, figure.unit) if figure.published else ""
        goal = f"{figure.goal.comparison} {_amount(figure.goal.value, figure.unit)}" if figure.goal else ""
        held = {None: "", True: "yes", False: "**no**"}[figure.held]
        yield f"| {_cell(figure.name)} | {published} | {goal} | {_measured(figure)} | {held} |"
    yield ""


def _cell(name: str) -> str:
    escaped = name.strip().replace("|", "\\|")
    return f"&nbsp;&nbsp;{escaped}" if name.startswith(" ") else escaped


def _measured(figure: Figure) -> str:
    spread = figure.spread
    value = _amount(figure.measured, figure.unit)
    if spread is None or spread.repeats == 1:
        return value
    return f"{value} ({written(spread.low)} to {written(spread.high)}, {spread.repeats} repeats)"


def _remarks(result: Result) -> Iterator[str]:
    sources = dict.fromkeys(figure.published.source for figure in result.figures if figure.published)
    yield from (f"- Published: {source}" for source in sources)
    yield from (f"- {named.name}: {named.figure.note}" for named in _named(result) if named.figure.note)
    yield from (f"- {note}" for note in result.notes)
    yield ""


def _picture(result: Result, folder: Path, at: Path) -> Iterator[str]:
    picture = folder / f"{result.name}.svg"
    if picture.exists():
        yield f"![{result.name}]({Path(os.path.relpath(picture, at)).as_posix()})"
        yield ""


def _missing(results: Mapping[str, Result]) -> Iterator[str]:
    missing = [name for name in bench.names() if name not in results]
    if missing:
        yield "## Not measured yet"
    for name in missing:
        entry = bench.CATALOGUE[name]
        yield f"- {_sentence(entry.summary)} `potluck bench {name} --full`"
