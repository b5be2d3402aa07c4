"""DISTREAL on real processes: each mini-batch trains what the device can afford at that moment, unasked."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from potluck.journal import Scalar, read
from tests.live.running import check_books, run_live

ROUNDS = 4


def test_a_device_trains_less_of_the_network_while_it_is_slow(tmp_path: Path) -> None:
    devices = [
        {"name": "free", "flops": "300 MFLOP/s"},
        {"name": "busy", "flops": "300 MFLOP/s", "speed": {"kind": "constant", "level": 0.4}},
    ]
    job: dict[str, Any] = {
        "recipe": "distreal",
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "rounds": {"batching": {"size": 8}, "local": {"steps": 4, "lr": 0.05}},
        "fleet": {"devices": devices, "lease": 5.0},
        "stop": {"rounds": ROUNDS},
        "checkpoint": 0,
    }
    result = run_live(tmp_path / "live", act_out=True, **job)
    check_books(tmp_path / "live", result, ROUNDS)
    shares: dict[str, list[Scalar]] = {"free": [], "busy": []}
    for record in read(tmp_path / "live/journal.jsonl"):
        if isinstance(record, Scalar) and record.name == "share":
            shares[record.node].append(record)
    assert all(len(found) == ROUNDS for found in shares.values())
    assert statistics.mean(record.value for record in shares["free"]) > 0.9
    assert all(record.fields["most"] <= 0.4 for record in shares["busy"])
    assert all(record.fields["least"] > 0.1 for record in shares["busy"])
