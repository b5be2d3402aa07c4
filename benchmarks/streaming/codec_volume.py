"""What a codec sends and what that does to the model: one training run for each codec, the rest alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import potluck
from potluck.job import Job, make
from potluck.journal import Span, read_journal

__all__ = ["CIFAR", "DIGITS", "CodecWorkload", "compressed_job", "measure_codec"]


class CodecWorkload(NamedTuple):
    """A network, its data, and for how long it is trained."""

    title: str
    task: Mapping[str, Any]
    rounds: int
    lr: float
    batch: int = 32
    devices: int = 16


DIGITS = CodecWorkload("MLP on digits", {"model": "mlp", "data": "digits"}, rounds=400, lr=0.1, batch=16)
CIFAR = CodecWorkload("LeNet-5 on CIFAR-10", {"model": "lenet", "data": "cifar10"}, rounds=600, lr=0.05)


def compressed_job(workload: CodecWorkload, codec: Mapping[str, Any], seed: int) -> Job:
    """Synchronous SGD whose updates go through the codec."""
    server = {"kind": "sgd", "lr": workload.lr, "momentum": 0.9}
    rounds = {
        "batching": {"kind": "fixed", "size": workload.batch},
        "codec": dict(codec),
        "server": server,
        "schedule": {"kind": "cosine", "rounds": workload.rounds},
    }
    return make(
        {
            "task": dict(workload.task),
            "fleet": {"devices": [{"preset": "pi4", "count": workload.devices}]},
            "recipe": "sync-sgd",
            "rounds": rounds,
            "stop": {"rounds": workload.rounds},
            "evaluate": 0,
            "checkpoint": 0,
            "seed": seed,
        }
    )


def measure_codec(workload: CodecWorkload, codec: Mapping[str, Any], seed: int, data: Path | None) -> dict[str, float]:
    """Accuracy at the end, bytes pushed, and the share of pushes that were compressed (the paper's CNC)."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        result = potluck.simulate(compressed_job(workload, codec, seed), folder=folder, data=data, threads=0)
        pushed = list(_pushed_bytes(folder / "journal.jsonl"))
    assert result.module is not None, result.reason
    whole = 4 * sum(parameter.numel() for parameter in result.module.parameters())
    return {
        "accuracy": float(result.summary["accuracy"]),
        "time_s": float(result.summary["time_s"]),
        "pushed_bytes": sum(pushed),
        "dense_bytes": whole * len(pushed),
        "cnc": sum(nbytes < whole / 2 for nbytes in pushed) / len(pushed),
    }


def _pushed_bytes(journal: Path) -> Iterator[float]:
    for record in read_journal(journal):
        if isinstance(record, Span) and record.name == "push":
            yield record.fields["bytes"]
