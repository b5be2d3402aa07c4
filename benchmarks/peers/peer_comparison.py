"""Measures two or more sides in one run: they alternate, and ratios are computed within each turn.

A comparison is a benchmark whose pieces are single runs of one side, so that an interrupted one resumes piece by piece.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, BenchmarkContext, BenchmarkPiece, Results
from benchmarks.benchmark_figures import Execution, Figure, Goal, bar_series, figure_of_repeats
from benchmarks.measured_code import LIVE_PACKAGE
from benchmarks.peers.peer_environments import interpreter
from benchmarks.peers.potluck_simulation import export_workload
from potluck.report.svg_chart import Chart

__all__ = ["Case", "Comparison", "Side", "advantage", "case_charts", "comparison_benchmark", "comparison_figures"]

_ROOT = Path(__file__).resolve().parents[2]
_WORKLOADS = Path(__file__).resolve().parent / ".workloads"
_QUICK_TURNS = 1
_NOT_BEHIND = Goal("≥", 1.0)
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """A module of this package with its arguments, the environment it runs in, and how it differs from Potluck."""

    name: str
    environment: str
    command: Sequence[str]
    remark: str = ""


@dataclass(frozen=True)
class Case:
    """Our own side and its peers, compared by one of the figures that they print."""

    title: str
    ours: Side
    peers: Sequence[Side]
    key: str
    unit: str
    more_is_better: bool
    goal: Goal = _NOT_BEHIND  # of our advantage over each peer
    same: str = ""  # a figure that must be equal on all sides, as proof that they compute the same
    workload: str = ""  # a network whose weights and data Potluck writes to a file for the peers


@dataclass(frozen=True)
class Comparison:
    """What `python -m benchmarks.peers NAME` measures."""

    name: str
    summary: str
    cases: Callable[[bool, Path], Sequence[Case]]  # quick or not, and the folder of the workloads' files
    turns: int
    executed: Execution
    notes: Sequence[str] = ()


def comparison_benchmark(comparison: Comparison) -> Benchmark:
    """A benchmark that measures the comparison: every side once in each turn."""

    def declare_pieces(context: BenchmarkContext) -> list[BenchmarkPiece]:
        turns = _QUICK_TURNS if context.quick else comparison.turns
        cases = comparison.cases(context.quick, _WORKLOADS)
        return [piece for case in cases for piece in _case_pieces(case, turns)]

    def compute_figures(results: Results) -> list[Figure]:
        return [
            figure
            for case in _all_cases(comparison)
            if (turns := _answers_by_turn(case, results))
            for figure in comparison_figures(case, turns, comparison.executed)
        ]

    def build_charts(results: Results) -> list[Chart]:
        return [
            chart
            for case in _all_cases(comparison)
            if (turns := _answers_by_turn(case, results))
            for chart in case_charts(case, turns, comparison.executed)
        ]

    return Benchmark(
        name=f"peers-{comparison.name}",
        summary=comparison.summary,
        pieces=declare_pieces,
        figures=compute_figures,
        charts=build_charts,
        notes=comparison.notes,
        resumes=True,
        measures=(*LIVE_PACKAGE, "benchmarks/peers"),
        command=f"python -m benchmarks.peers {comparison.name}",
    )


def _all_cases(comparison: Comparison) -> list[Case]:
    """The cases of both modes, each once; a quick run has no others than a full one."""
    return list({case.title: case for quick in (True, False) for case in comparison.cases(quick, _WORKLOADS)}.values())


# --- measuring -------------------------------------------------------------------------------------------------------


def _case_pieces(case: Case, turns: int) -> Iterator[BenchmarkPiece]:
    """The order of the sides is reversed in every other turn."""
    sides = [case.ours, *case.peers]
    for turn in range(turns):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            parameters = {"command": [Path(word).name for word in side.command], "environment": side.environment}
            yield BenchmarkPiece(
                _piece_name(case, turn, side), parameters, partial(_measure_side, case.workload, side), 60.0
            )


def _piece_name(case: Case, turn: int, side: Side) -> str:
    return f"{case.title}/{turn}/{side.name}"


def _measure_side(workload: str, side: Side) -> Answer:
    if workload:
        _WORKLOADS.mkdir(exist_ok=True)
        export_workload(workload, _WORKLOADS / f"{workload}.pt")
    return run_side(side)


def run_side(side: Side) -> Answer:
    """Run a side; its answer is the last line that it prints."""
    module, *arguments = side.command
    command = [interpreter(side.environment), "-m", f"benchmarks.peers.{module}", *arguments]
    search_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    one_thread = {"OMP_NUM_THREADS": "1"}  # in every process of every side, since each side uses all cores by itself
    environment = {**os.environ, **one_thread, "PYTHONPATH": search_path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{side.name}: {done.stderr.strip()[-2000:]}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


# --- figures ---------------------------------------------------------------------------------------------------------


def _answers_by_turn(case: Case, results: Results) -> list[dict[str, Answer]]:
    """The answers of all sides in every turn that was measured."""
    turns: list[dict[str, Answer]] = []
    while _piece_name(case, len(turns), case.ours) in results:
        turn = len(turns)
        named = {side.name: results.get(_piece_name(case, turn, side)) for side in (case.ours, *case.peers)}
        answers = {name: answer for name, answer in named.items() if answer is not None}
        _check_same(case, answers)
        turns.append(answers)
    return turns


def advantage(case: Case, ours: Answer, peer: Answer) -> float:
    """The factor by which our side is better than a peer."""
    own, theirs = float(ours["figures"][case.key]), float(peer["figures"][case.key])
    return own / theirs if case.more_is_better else theirs / own


def comparison_figures(case: Case, turns: Sequence[Mapping[str, Answer]], executed: Execution) -> list[Figure]:
    """Our advantage over every peer, and the values of each side."""
    figures = []
    for peer in case.peers:
        factors = [advantage(case, turn[case.ours.name], turn[peer.name]) for turn in turns if peer.name in turn]
        name = f"{case.title}: advantage over {peer.name}"
        if factors:
            figures.append(figure_of_repeats(name, "x", factors, executed=executed, goal=case.goal, note=peer.remark))
    return [*figures, *_side_figures(case, turns, executed)]


def _side_figures(case: Case, turns: Sequence[Mapping[str, Answer]], executed: Execution) -> Iterator[Figure]:
    for side in (case.ours, *case.peers):
        answers = [turn[side.name] for turn in turns if side.name in turn]
        if answers:
            values = [float(answer["figures"][case.key]) for answer in answers]
            versions = ", ".join(f"{name} {version}" for name, version in answers[0].get("versions", {}).items())
            yield figure_of_repeats(f"{case.title}: {side.name}", case.unit, values, executed=executed, note=versions)


def case_charts(case: Case, turns: Sequence[Mapping[str, Answer]], executed: Execution) -> list[Chart]:
    figures = list(_side_figures(case, turns, executed))
    names = [figure.name.removeprefix(f"{case.title}: ") for figure in figures]
    unit = "clients per second, more is better" if case.more_is_better else "seconds, less is better"
    return [
        Chart(
            title=case.title,
            y_label=unit,
            groups=names,
            series=[bar_series("mean of the turns, 95 % interval", figures)],
        )
    ]


def _check_same(case: Case, answers: Mapping[str, Answer]) -> None:
    if not case.same:
        return
    values = {name: float(answer["figures"][case.same]) for name, answer in answers.items()}
    if max(values.values()) - min(values.values()) > 1e-3 * max(values.values()):
        raise SystemExit(f"{case.title}: the sides did not compute the same: {case.same} is {values}")
