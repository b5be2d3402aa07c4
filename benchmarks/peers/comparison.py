"""Two or more sides measured in one run: they take turns, and the ratio is formed within each turn."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments import interpreter

from benchmarks.benchmark_figures import Figure, Goal, figure_of_repeats

__all__ = ["Case", "Comparison", "Side", "figures", "measure", "ratio"]

_HERE = Path(__file__).resolve().parent
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Side:
    """A script of this folder, the environment it runs in, and what it does that the others do not."""

    name: str
    environment: str
    command: Sequence[str]
    remark: str = ""


@dataclass(frozen=True)
class Case:
    """What is compared: our own side against each peer, by one figure of what they print."""

    title: str
    ours: Side
    peers: Sequence[Side]
    key: str
    unit: str
    more_is_better: bool
    goal: Goal | None = None
    same: str = ""  # a figure that must be alike on all sides: they have computed the same


@dataclass(frozen=True)
class Comparison:
    """What `run.py NAME` measures."""

    name: str
    summary: str
    cases: Callable[[bool, Path], Sequence[Case]]  # quick or not, and a folder for files
    repeats: int
    notes: Sequence[str] = ()


def measure(case: Case, repeats: int, say: Callable[[str], None]) -> list[dict[str, Answer]]:
    """One answer of each side per turn; who goes first changes with the turn."""
    turns = []
    sides = [case.ours, *case.peers]
    for turn in range(repeats):
        order = sides if turn % 2 == 0 else sides[::-1]
        answers = {}
        for side in order:
            say(f"{case.title}, turn {turn + 1} of {repeats}: {side.name}")
            answers[side.name] = ask(side)
        _check_same(case, answers)
        turns.append(answers)
    return turns


def ask(side: Side) -> Answer:
    """Run a side's script; its answer is the last line that it prints."""
    script, *arguments = side.command
    command = [interpreter(side.environment), str(_HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side.name}: {done.stderr.strip()[-2000:]}")
    answer: Answer = json.loads(done.stdout.splitlines()[-1])
    return answer


def ratio(case: Case, ours: Answer, peer: Answer) -> float:
    """How many times better we are."""
    mine, theirs = float(ours["figures"][case.key]), float(peer["figures"][case.key])
    return mine / theirs if case.more_is_better else theirs / mine


def figures(case: Case, turns: Sequence[Mapping[str, Answer]]) -> list[Figure]:
    """Our ratio to every peer, and what each side reached."""
    found = []
    for peer in case.peers:
        ratios = [ratio(case, turn[case.ours.name], turn[peer.name]) for turn in turns]
        name = f"{case.title}: {case.ours.name} against {peer.name}"
        found.append(figure_of_repeats(name, "x", ratios, goal=case.goal, note=peer.remark))
    for side in [case.ours, *case.peers]:
        values = [float(turn[side.name]["figures"][case.key]) for turn in turns]
        found.append(figure_of_repeats(f"{case.title}: {side.name}", case.unit, values))
    return found


def _check_same(case: Case, answers: Mapping[str, Answer]) -> None:
    if not case.same:
        return
    values = {name: float(answer["figures"][case.same]) for name, answer in answers.items()}
    if max(values.values()) - min(values.values()) > 1e-3 * max(values.values()):
        raise SystemExit(f"{case.title}: the sides have not computed the same: {case.same} is {values}")
