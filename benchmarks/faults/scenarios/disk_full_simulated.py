"""A simulated run on disks that are too small: each stops it at another moment, and it is resumed with more space."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from benchmarks.faults.process_fleet import rounds_job
from benchmarks.faults.small_disk import fill_disk, missing_for_disks, small_disk
from potluck.cli import main
from potluck.job import dump_job, make

__all__ = ["SCENARIO"]

_DISK_BYTES = 8 << 20
_FILES = ("journal.jsonl", "model.safetensors")


def measure(context: ScenarioContext) -> list[Figure]:
    """The space that is left before each run is spread evenly up to what the whole run needs."""
    job = context.folder / "job.toml"
    job.write_text(dump_job(make(rounds_job(devices=2, hidden=16, stop={"rounds": 40}))))
    undisturbed = context.folder / "undisturbed"
    _potluck("run", job, "--out", undisturbed, "--quiet")
    needed = 2 * sum(path.stat().st_size for path in undisturbed.rglob("*") if path.is_file())
    stopped = wrong_ends = differing = 0
    disks = context.size["disks"]
    for number in range(disks):
        with small_disk(context.folder / f"disk-{number}", _DISK_BYTES) as disk:
            filler = fill_disk(disk, leave_bytes=needed * number // disks)
            code, lines = _potluck("run", job, "--out", disk / "run", "--quiet")
            stopped += code != 0
            wrong_ends += code not in (0, 1) or (code == 1 and len(lines) != 1)
            filler.unlink()
            if (disk / "run" / "checkpoints").exists() and code != 0:
                code, _ = _potluck("resume", disk / "run", "--quiet")
                differing += code != 0 or any(_differ(disk / "run" / name, undisturbed / name) for name in _FILES)
    return [
        Figure(
            name="runs stopped by a full disk",
            unit="",
            measured=stopped,
            goal=Goal("≥", disks // 3),
            executed="simulated",
        ),
        Figure(
            name="not one line and exit code 1", unit="", measured=wrong_ends, goal=Goal("≤", 0), executed="simulated"
        ),
        Figure(
            name="resumed, but not as if undisturbed",
            unit="",
            measured=differing,
            goal=Goal("≤", 0),
            executed="simulated",
        ),
    ]


def _differ(first: Path, second: Path) -> bool:
    return not first.exists() or first.read_bytes() != second.read_bytes()


def _potluck(*words: str | Path) -> tuple[int, list[str]]:
    """The exit code of a command and the lines on stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            return int(ended.code or 0), errors.getvalue().splitlines()
    return 0, errors.getvalue().splitlines()


SCENARIO = FaultScenario(
    title="full disk, simulated",
    clause="A simulated run on a full disk ends with one line and exit code 1, and its last checkpoint is whole.",
    executed="simulated",
    measure=measure,
    quick={"disks": 6},
    full={"disks": 100},
    quick_s=5.0,
    full_s=150.0,
    needs=missing_for_disks,
)
