"""Measures two or more sides in one run: they alternate, and ratios are computed within each turn."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats
from benchmarks.peers.peer_environments import interpreter

__all__ = ["Case", "Comparison", "Side", "advantage", "comparison_figures", "measure_case"]

_ROOT = Path(__file__).resolve().parents[2]
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
    goal: Goal | None = None
    same: str = ""  # a figure that must be equal on all sides, as proof that they compute the same


@dataclass(frozen=True)
class Comparison:
    """What `python -m benchmarks.peers NAME` measures."""

    name: str
    summary: str
    cases: Callable[[bool, Path], Sequence[Case]]  # quick or not, and a folder for files
    repeats: int
    notes: Sequence[str] = ()


def measure_case(case: Case, repeats: int, show: Callable[[str], None]) -> list[dict[str, Answer]]:
    """One answer of each side per turn; the order is reversed in every other turn."""
    turns = []
    sides = [case.ours, *case.peers]
    for turn in range(repeats):
        order = sides if turn % 2 == 0 else sides[::-1]
        answers = {}
        for side in order:
            show(f"{case.title}, turn {turn + 1} of {repeats}: {side.name}")
            answers[side.name] = run_side(side)
        _check_same(case, answers)
        turns.append(answers)
    return turns


def run_side(side: Side) -> Answer:
    """Run a side; its answer is the last line that it prints."""
    module, *arguments = side.command
    command = [interpreter(side.environment), "-m", f"benchmarks.peers.{module}", *arguments]
    search_path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": search_path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"{side.name}: {done.stderr.strip()[-2000:]}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


def advantage(case: Case, ours: Answer, peer: Answer) -> float:
    """The factor by which our side is better than a peer."""
    own, theirs = float(ours["figures"][case.key]), float(peer["figures"][case.key])
    return own / theirs if case.more_is_better else theirs / own


def comparison_figures(case: Case, turns: Sequence[Mapping[str, Answer]]) -> list[Figure]:
    """Our advantage over every peer, and the values of each side."""
    figures = []
    for peer in case.peers:
        factors = [advantage(case, turn[case.ours.name], turn[peer.name]) for turn in turns]
        name = f"{case.title}: advantage over {peer.name}"
        figures.append(figure_of_repeats(name, "x", factors, goal=case.goal, note=peer.remark))
    for side in [case.ours, *case.peers]:
        values = [float(turn[side.name]["figures"][case.key]) for turn in turns]
        figures.append(figure_of_repeats(f"{case.title}: {side.name}", case.unit, values))
    return figures


def _check_same(case: Case, answers: Mapping[str, Answer]) -> None:
    if not case.same:
        return
    values = {name: float(answer["figures"][case.same]) for name, answer in answers.items()}
    if max(values.values()) - min(values.values()) > 1e-3 * max(values.values()):
        raise SystemExit(f"{case.title}: the sides did not compute the same: {case.same} is {values}")
