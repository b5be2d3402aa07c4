"""Processes that want the folder of a dead owner at the same instant, and how often two of them had it at once."""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.faults.command_process import end_with_parent
from potluck.errors import RunError
from potluck.run.process_identity import ProcessIdentity
from potluck.run.run_lock import LOCK_FILE, RunOwner, lock_run

__all__ = ["RaceOutcome", "SuccessorRace"]

_MAX_DELAY_S = 0.001  # between the rivals' first looks at the folder
_HELD_S = 0.06  # longer than a rival waits before it looks again
_LIMIT_S = 120.0  # for all rivals to start, on a busy machine


@dataclass(frozen=True)
class RaceOutcome:
    """What came of all races."""

    races: int
    won: int  # races in which somebody got the folder
    shared: int  # races in which two had it at the same time


@dataclass(frozen=True)
class SuccessorRace:
    """Races for one folder; each begins with the file of an owner that is dead.

    With `orphaned` a child that the dead owner has forked still holds the kernel's lock.
    """

    folder: Path
    rivals: int
    seed: int

    def repeat(self, races: int, *, orphaned: bool = False) -> RaceOutcome:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        ready, results = context.Barrier(self.rivals + 1), context.Queue()
        processes = [
            context.Process(target=_compete, args=(self.folder, races, f"{self.seed}/{number}", ready, results))
            for number in range(self.rivals)
        ]
        for process in processes:
            process.start()
        try:
            outcomes = [self._race_once(ready, results, orphaned) for _ in range(races)]
        finally:
            for process in processes:
                process.kill()
                process.join()
        return RaceOutcome(races, sum(map(bool, outcomes)), sum(map(_overlap, outcomes)))

    def _race_once(self, ready: Any, results: Any, orphaned: bool) -> list[tuple[float, float]]:
        """When each of those that got the folder had it."""
        path = self.folder / LOCK_FILE
        path.write_bytes(msgspec.json.encode(_dead_owner()))
        with path.open("rb") as orphan:
            if orphaned:
                fcntl.flock(orphan, fcntl.LOCK_EX)
            ready.wait(_LIMIT_S)
            spans = [results.get(timeout=_LIMIT_S) for _ in range(self.rivals)]
        return [span for span in spans if span is not None]


def _dead_owner() -> RunOwner:
    process = ProcessIdentity.of_this_process()
    dead = msgspec.structs.replace(process, born=process.born - 1)  # an earlier one with the same number
    return RunOwner(process=dead, since="2026-01-01 12:00:00", command="potluck serve", key="dead")


def _compete(folder: Path, races: int, seed: str, ready: Any, results: Any) -> None:
    """In a process of its own."""
    end_with_parent(signal.SIGKILL)
    rng = random.Random(seed)
    for _ in range(races):
        ready.wait(_LIMIT_S)
        start = time.perf_counter() + rng.uniform(0.0, _MAX_DELAY_S)
        while time.perf_counter() < start:
            pass
        results.put(_hold(folder))


def _hold(folder: Path) -> tuple[float, float] | None:
    """Own the folder for a moment; None where it is refused."""
    try:
        with lock_run(folder):
            began = time.monotonic()
            time.sleep(_HELD_S)
            return began, time.monotonic()
    except RunError:
        return None


def _overlap(spans: Sequence[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(sorted(spans)))
