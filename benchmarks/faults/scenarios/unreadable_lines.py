"""Every reader of a journal reads one whose lines are damaged at random."""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.benchmark_figures import Figure, Goal
from benchmarks.faults.fault_scenario import FaultScenario, ScenarioContext
from potluck.errors import PotluckWarning
from potluck.journal import JournalTotals, RecordDecoder, read_journal, read_journal_tail
from potluck.report import load_run_view
from potluck.report.journal_export import export_run
from potluck.report.journal_follower import JournalFollower, RunOverview
from potluck.report.run_folder import open_run
from potluck.run import simulate
from potluck.run.metric_table import read_run_scalars

__all__ = ["SCENARIO"]

_FLEET = {
    "devices": [{"name": "d", "count": 3, "flops": "20 MFLOP/s"}],
    "faults": [{"kind": "crash", "device": "d-1", "at": "300 ms", "restart": "200 ms"}],
}
_TASK = {"model": "mlp", "data": {"kind": "synthetic", "train": 200, "test": 50}, "options": {"hidden": [16, 16]}}
_JOBS: list[dict[str, Any]] = [
    {"recipe": "fedavg", "task": _TASK, "fleet": _FLEET, "stop": {"rounds": 30}},
    {"recipe": "ftpipehd", "task": _TASK, "fleet": _FLEET, "stop": {"rounds": 30}},
    {"recipe": "scadles", "task": _TASK, "fleet": _FLEET, "stop": {"rounds": 30}},
]
_VALUES: list[Any] = [None, -1, 2**40, 10**400, 1e300, -1e18, "x", [], [[]], [None], {}, True, [["a", None]], [1, 2]]
_NAMES = ["round", "push", "partition", "committed", "share", "link", "account", "step", "joined", "lost"]


def mutate_line(line: bytes, rng: random.Random) -> bytes:
    """The line with a value replaced, or with some bytes changed."""
    if rng.random() < 0.4:
        content = bytearray(line)
        for _ in range(rng.randint(1, 6)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        return bytes(content).replace(b"\n", b" ")
    record: dict[str, Any] = json.loads(line)
    target = record["fields"] if record.get("fields") and rng.random() < 0.7 else record
    target[rng.choice(list(target))] = rng.choice(_VALUES)
    if rng.random() < 0.1:
        record["name"] = rng.choice(_NAMES)
    return json.dumps(record).encode()


def _read_in_every_way(folder: Path) -> int:
    """Returns how many lines cannot be read; all readers must agree."""
    run, decoder, totals = open_run(folder), RecordDecoder(), JournalTotals()
    records = sum(1 for _ in read_journal(run.journal, decoder))
    counts = {decoder.unreadable, load_run_view(run)["unreadable"], totals.add_journal(run.journal)}
    follower = JournalFollower(run)
    follower.read_new()
    counts.add(follower.current_view()[0]["unreadable"])
    RunOverview(run).to_entry()
    read_run_scalars(run.journal)
    read_journal_tail(run.journal, 100_000)
    totals.device_summary(10.0)
    totals.bottleneck_sentence(10.0)
    totals.stream_summary()
    export_run(run, "csv", folder / "export")
    (exported,) = export_run(run, "jsonl", folder / "export")
    if len(counts) != 1 or exported.read_bytes().count(b"\n") != records:
        raise AssertionError(f"the readers do not agree: {counts}")
    return decoder.unreadable


def measure(context: ScenarioContext) -> list[Figure]:
    rng, broken, mutated, skipped = random.Random(context.seed), 0, 0, 0
    runs = []
    for number, job in enumerate(_JOBS):
        runs.append(context.folder / str(number))
        simulate(job, folder=runs[-1], threads=0)
    whole = [(run / "journal.jsonl").read_bytes().splitlines() for run in runs]
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PotluckWarning)
        while mutated < context.size["lines"]:
            for run, lines in zip(runs, whole, strict=True):
                chosen = [mutate_line(line, rng) if rng.random() < 0.5 else line for line in lines]
                mutated += sum(new != old for new, old in zip(chosen, lines, strict=True))
                (run / "journal.jsonl").write_bytes(b"\n".join(chosen) + b"\n")
                try:
                    skipped += _read_in_every_way(run)
                except Exception as error:  # any is a reader that damage stops
                    context.show(f"{type(error).__name__}: {error}")
                    broken += 1
    return [
        Figure(
            name="journals that a reader could not read",
            unit="",
            measured=broken,
            goal=Goal("≤", 0),
            executed="measured",
        ),
        Figure(name="lines damaged", unit="", measured=mutated, executed="measured"),
        Figure(name="lines skipped and counted", unit="", measured=skipped, executed="measured"),
        Figure(
            name="time for a thousand damaged lines, all readers",
            unit="s",
            measured=1000 * (time.monotonic() - began) / mutated,
            executed="measured",
        ),
    ]


SCENARIO = FaultScenario(
    title="unreadable journal lines",
    clause="A journal line that cannot be read never makes a run unreadable: it is skipped, counted and said.",
    executed="measured",
    measure=measure,
    quick={"lines": 20_000},
    full={"lines": 1_000_000},
    quick_s=5.0,
    full_s=240.0,
)
