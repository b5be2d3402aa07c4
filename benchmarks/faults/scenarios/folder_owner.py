"""Several commands want one run's folder, whose owner is killed again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.command_process import CommandProcess, wait_until
from benchmarks.faults.committed_rounds import read_commits
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.successor_race import RaceOutcome, SuccessorRace
from potluck.job import dump_job, make
from potluck.run import simulate
from potluck.run.run_lock import read_owner

__all__ = ["SCENARIO"]

_WAIT_S = 120.0
_RIVALS = 3
_JOB: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {"model": "mlp", "data": {"kind": "synthetic", "train": 200, "test": 20}, "options": {"hidden": [16]}},
    "fleet": {"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}]},
    "checkpoint": 1,
}
_ENDLESS = 10_000_000


class Contest:
    """One folder, its owner, and those who want it."""

    def __init__(self, folder: Path) -> None:
        self.run, self._log = folder / "run", folder / "commands.log"
        self._job = folder / "job.toml"
        self._job.write_text(dump_job(make({**_JOB, "stop": {"rounds": _ENDLESS}})))
        self.intruders = 0
        self.take_over_s: list[float] = []

    def start(self, *words: str | Path) -> CommandProcess:
        return CommandProcess([str(word) for word in words], self._log)

    def start_owner(self) -> CommandProcess:
        owner = self.start("run", self._job, "--out", self.run, "--quiet")
        wait_until("the owner", lambda: self.owner_pid() == owner.pid, _WAIT_S)
        return owner

    def owner_pid(self) -> int:
        owner = read_owner(self.run)
        return -1 if owner is None else owner.process.pid

    def try_to_intrude(self) -> None:
        """Every command that writes to a folder is tried on the owner's."""
        out = ("--out", self.run)
        rivals = [self.start("resume", self.run), *(self.start(verb, self._job, *out) for verb in ("run", "serve"))]
        self.intruders += sum(rival.wait(_WAIT_S) != 2 for rival in rivals)

    def replace_owner(self, owner: CommandProcess) -> CommandProcess:
        """Kill the owner and let several successors race for its folder; all but one must be refused."""
        owner.kill()
        began = time.monotonic()
        rivals = [self.start("resume", self.run, "--quiet") for _ in range(_RIVALS)]
        pids = {rival.pid for rival in rivals}
        wait_until("a successor", lambda: self.owner_pid() in pids, _WAIT_S)
        self.take_over_s.append(time.monotonic() - began)
        wait_until("the others' end", lambda: sum(rival.is_running for rival in rivals) <= 1, _WAIT_S)
        winners = [rival for rival in rivals if rival.exit_code != 2]
        self.intruders += len(winners) - 1
        return winners[0]


def measure(context: ScenarioContext) -> list[Figure]:
    return [*_measure_commands(context), *_measure_races(context)]


def _measure_races(context: ScenarioContext) -> list[Figure]:
    """The commands above reach the folder tenths of a second apart; these processes reach it at the same instant."""
    folder = context.folder / "raced"
    folder.mkdir()
    race, count = SuccessorRace(folder, _RIVALS, context.seed), context.size["races"]
    context.show(f"{count} races for a dead owner's folder")
    dead, orphaned = race.repeat(count), race.repeat(max(1, count // 10), orphaned=True)
    return [_race_figure("dead owner", dead), _race_figure("dead owner whose child holds the lock", orphaned)]


def _race_figure(start: str, outcome: RaceOutcome) -> Figure:
    return Figure(
        name=f"races from the file of a {start}: without exactly one successor",
        unit="",
        measured=outcome.shared + outcome.races - outcome.won,
        goal=Goal("≤", 0),
        note=f"of {outcome.races}, {_RIVALS} processes each",
        executed="live",
    )


def _measure_commands(context: ScenarioContext) -> list[Figure]:
    rng, contest = random.Random(context.seed), Contest(context.folder)
    owner = contest.start_owner()
    for number in range(context.size["kills"]):
        context.show(f"kill {number + 1} of {context.size['kills']}")
        contest.try_to_intrude()
        time.sleep(rng.uniform(0.0, 0.5))
        owner = contest.replace_owner(owner)
    before = read_commits(contest.run)
    owner.kill()
    rounds = len(before.lines) + 20
    code = contest.start("resume", contest.run, "--quiet", "--set", f"stop.rounds={rounds}").wait(_WAIT_S)
    return _figures(context, contest, rounds, code, before.lines)


def _figures(
    context: ScenarioContext, contest: Contest, rounds: int, code: int, before: Sequence[bytes]
) -> list[Figure]:
    simulate({**_JOB, "stop": {"rounds": rounds}}, folder=context.folder / "unbroken")
    equal = (contest.run / "journal.jsonl").read_bytes() == (context.folder / "unbroken" / "journal.jsonl").read_bytes()
    commits = read_commits(contest.run)
    doubled = commits.repeated + commits.skipped + commits.lost_since(before)
    return [
        Figure(
            name="second writers that were let in",
            unit="",
            measured=contest.intruders,
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(name="rounds lost or doubled", unit="", measured=doubled, goal=Goal("≤", 0), executed="live"),
        Figure(
            name="journals that differ from that of an unbroken run",
            unit="",
            measured=int(code != 0 or not equal),
            goal=Goal("≤", 0),
            executed="live",
        ),
        Figure(
            name="kill -9 until a successor owns the folder, at most",
            unit="s",
            measured=max(contest.take_over_s),
            executed="live",
        ),
    ]


SCENARIO = FaultScenario(
    title="the owner of a run's folder is killed",
    clause="A run's folder has one owner; a dead owner's successor takes over, and nobody else writes.",
    executed="live",
    measure=measure,
    quick={"kills": 2, "races": 20},
    full={"kills": 40, "races": 500},
    quick_s=15.0,
    full_s=360.0,
)
