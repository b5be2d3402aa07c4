"""Files of an interrupted run are damaged at random; the run is resumed and compared with an unbroken one."""

from __future__ import annotations

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck.checkpoint_files import list_checkpoints
from potluck.errors import PotluckWarning, UserError
from potluck.model import weights_file
from potluck.run import resume, simulate

__all__ = ["SCENARIO"]

_ROUNDS, _DONE = 10, 7
_JOB: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {"model": "mlp", "data": {"kind": "synthetic", "train": 200, "test": 50}, "options": {"hidden": [16]}},
    "fleet": {"devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}]},
    "checkpoint": 2,
    "best": "accuracy",
    "stop": {"rounds": _ROUNDS},
}


def _interrupt(folder: Path) -> None:
    done: list[float] = []
    simulate(
        _JOB, folder=folder, watch=lambda store, now: done.append(now), stopping=lambda: len(done) >= _DONE, threads=0
    )


def damage_file(path: Path, rng: random.Random) -> str:
    """Damage a file in one of the ways in which disks do; returns which."""
    content = bytearray(path.read_bytes())
    kind = rng.choice(["empty", "torn", "garbage", "zeros", "flipped bit", "missing"])
    if kind == "missing":
        path.unlink()
        return kind
    if kind == "flipped bit" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "torn":
        del content[rng.randrange(len(content) + 1) :]
    elif kind in ("garbage", "zeros"):
        size = len(content)
        content = bytearray(rng.randbytes(size) if kind == "garbage" else size)
    else:
        content.clear()
    path.write_bytes(content)
    return kind


def _is_unbroken(run: Path, unbroken: Path, *, compare_journal: bool) -> bool:
    names = [weights_file.WEIGHTS_FILE, weights_file.BEST_FILE, *(["journal.jsonl"] if compare_journal else [])]
    return all((run / name).read_bytes() == (unbroken / name).read_bytes() for name in names)


def measure(context: ScenarioContext) -> list[Figure]:
    rng = random.Random(context.seed)
    unbroken, interrupted = context.folder / "unbroken", context.folder / "interrupted"
    simulate(_JOB, folder=unbroken, threads=0)
    _interrupt(interrupted)
    refused = differing = silent = 0
    for number in range(context.size["trials"]):
        run = context.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(interrupted, run)
        newest = list_checkpoints(run / "checkpoints")
        targets = [*newest, run / "journal.jsonl", run / weights_file.BEST_FILE]
        hit = rng.sample(targets, rng.choice([1, 1, 2]))
        kinds = {path: damage_file(path, rng) for path in hit}
        flipped = kinds.get(run / "journal.jsonl") == "flipped bit"  # such a record is lost, and the rest is read
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", PotluckWarning)
            try:
                resume(run, threads=0)
            except UserError as error:
                context.show(f"trial {number}: {error}")
                refused += 1
                continue
        equal = _is_unbroken(run, unbroken, compare_journal=not flipped)
        differing += not equal
        silent += kinds.get(newest[0], "flipped bit") not in ("flipped bit", "missing") and not said
        if not equal:
            context.show(f"trial {number}: {kinds} ends with another result")
    return [
        Figure(
            name="damaged runs that could not be resumed",
            unit="",
            measured=refused,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
        Figure(
            name="damaged runs with another result",
            unit="",
            measured=differing,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
        Figure(
            name="damaged newest checkpoints that were not mentioned",
            unit="",
            measured=silent,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
        Figure(name="runs damaged and resumed", unit="", measured=context.size["trials"], executed="simulated"),
    ]


SCENARIO = FaultScenario(
    title="damaged checkpoints and journals",
    clause="A damaged run goes on from what is whole, and ends as if nothing had been damaged.",
    executed="simulated",
    measure=measure,
    quick={"trials": 25},
    full={"trials": 600},
    quick_s=5.0,
    full_s=240.0,
)
