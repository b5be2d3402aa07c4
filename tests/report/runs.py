"""Small hand-written runs with every kind of record that a report page shows."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path

from potluck.job import dump_job, make
from potluck.journal import Instant, Journal, JournalRecord, Scalar, Span
from potluck.planning.pareto_table import ParetoTable
from potluck.settings import encode_settings

FLEET = """
[[fleet.devices]]
preset = "pi4"
count = 2
[[fleet.devices]]
preset = "phone"
"""
JOB = f"""
recipe = "fedavg"
[task]
model = "mlp"
data = "digits"
[stop]
rounds = 20
{FLEET}
"""
DEVICES = ("pi4-0", "pi4-1", "phone")


def explored() -> str:
    """The saved job of a filter-dropout run with a table of two entries."""
    entries = [(10, 0.1, [0.5]), (20, 0.3, [0.0])]
    table = ParetoTable.from_trials("mlp on digits", ["linear1"], 20, entries)
    submodel = {"kind": "filter-dropout", "table": encode_settings(table)}
    return dump_job(make({**tomllib.loads(JOB), "rounds": {"submodel": submodel}}))


def keep(folder: Path, records: Iterable[JournalRecord], job: str = JOB, finished: bool = True) -> Path:
    """A run folder with these records; `finished` adds the summary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.toml").write_text(job)
    with Journal(folder / "journal.jsonl") as journal:
        for record in records:
            journal.write_record(record)
    if finished:
        summary = {"name": "mlp on digits", "recipe": "fedavg", "status": "done", "reason": "20 rounds"}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def one_round(number: int, devices: Iterable[str] = DEVICES) -> list[JournalRecord]:
    """A round of two seconds; devices listed later compute longer."""
    start = 2.0 * number
    records: list[JournalRecord] = []
    for index, name in enumerate(devices):
        computed_at = start + 1.0 + 0.2 * index
        records.append(Span(name, "pull", start, start + 0.5, {"round": number, "bytes": 1000}))
        records.append(Span(name, "compute", start + 0.5, computed_at, {"round": number, "samples": 32}))
        records.append(Span(name, "push", computed_at, computed_at + 0.4, {"round": number, "bytes": 500}))
    merged = [[name, 1] for name in devices]
    records.append(Span("coordinator", "round", start, start + 2.0, {"round": number, "devices": merged}))
    fields = {"round": number + 1, "bytes": 4500 * (number + 1)}
    for name, value in (("loss", 2.0 / (number + 1)), ("test_accuracy", 1 - 0.9 / (number + 1))):
        records.append(Scalar("coordinator", name, start + 2.0, value, fields))
    return records


def rounds(count: int = 20, devices: Iterable[str] = DEVICES) -> list[JournalRecord]:
    return [record for number in range(count) for record in one_round(number, tuple(devices))]


def metrics() -> list[JournalRecord]:
    """Evaluations by two metrics that say which way is better."""
    values = (("test_perplexity", "lower", (4.0, 2.0, 2.5)), ("test_f1", "higher", (0.0, 0.5, 0.25)))
    return [
        Scalar("coordinator", name, 41.0 + round, value, {"round": 20 + round, "bytes": 90_000, "better": better})
        for name, better, series in values
        for round, value in enumerate(series)
    ]


def faults() -> list[JournalRecord]:
    return [
        Instant("pi4-1", "crash", 7.0, {"value": 1.0}),
        Instant("pi4-1", "lost", 7.05, {"round": 3, "reason": "crashed"}),
        Instant("pi4-1", "start", 12.0),
        Instant("phone", "link", 20.0, {"value": 0.0}),
        Instant("phone", "link", 23.0, {"value": 1.0}),
    ]


def every_kind() -> list[JournalRecord]:
    """Records of every kind that a page can draw."""
    signals = [
        Scalar(name, signal, float(at), (at * (index + 1)) % 7 / 7, {"round": at})
        for signal in ("buffer", "rate", "dropped", "share")
        for index, name in enumerate(DEVICES)
        for at in range(0, 40, 2)
    ]
    pipeline = [
        Span("pi4-0", "forward", 40.0, 40.4, {"batch": 0, "stage": 0, "version": 0}),
        Span("phone", "backward", 40.4, 40.9, {"batch": 0, "stage": 1, "version": 0}),
        Span("coordinator", "recover", 39.0, 40.0, {"cuts": [3], "order": ["pi4-0", "phone"]}),
    ]
    cuts = [
        Instant("coordinator", "partition", 1.0, {"cuts": [2], "order": ["pi4-0", "pi4-1"], "layers": 6}),
        Instant("coordinator", "partition", 20.0, {"cuts": [3], "order": ["pi4-0", "phone"], "layers": 6}),
    ]
    return [*rounds(), *faults(), *signals, *pipeline, *cuts]
