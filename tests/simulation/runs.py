"""Small simulated jobs for tests, and readers of their journals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import potluck
from potluck.journal import Instant, Span, read_journal

RECIPES = ["sync-sgd", "fedavg", "fedbuff", "fedavg-quorum", "dynacomm", "duplex"]

SMALL: dict[str, Any] = {
    "task": {"model": "mlp", "data": "digits", "options": {"hidden": [16]}},
    "fleet": "kitchen-table",
    "stop": {"rounds": 8},
    "checkpoint": 3,
}


def simulate(folder: Path, **settings: Any) -> potluck.Result:
    """Run the small job with some settings changed; options of `simulate` start with an underscore."""
    options = {key[1:]: settings.pop(key) for key in list(settings) if key.startswith("_")}
    return potluck.simulate({**SMALL, **settings}, folder=folder, **options)


def journal(folder: Path) -> bytes:
    return (folder / "journal.jsonl").read_bytes()


def rounds(folder: Path) -> list[Span]:
    """The committed rounds of a run."""
    return [
        record
        for record in read_journal(folder / "journal.jsonl")
        if isinstance(record, Span) and record.name == "round"
    ]


def instants(folder: Path, name: str) -> list[Instant]:
    return [
        record
        for record in read_journal(folder / "journal.jsonl")
        if isinstance(record, Instant) and record.name == name
    ]
