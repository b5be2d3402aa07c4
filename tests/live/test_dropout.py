"""DISTREAL on real processes: each mini-batch trains what the device can currently afford."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from potluck.journal import Scalar, read_journal
from tests.live.live_scenarios import check_committed_rounds, run_live

Device = dict[str, Any]

ROUNDS = 4


def _shares(folder: Path, devices: list[Device], *, emulate_fleet: bool, **rounds: Any) -> dict[str, list[Scalar]]:
    """The fraction of the network that each device trained, per round."""
    job: dict[str, Any] = {
        "recipe": "distreal",
        "task": {"model": "lenet", "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 96, "test": 10}},
        "rounds": {"batching": {"size": 8}, "local": {"steps": 4, "lr": 0.05}, **rounds},
        "fleet": {"devices": devices, "lease": 5.0},
        "stop": {"rounds": ROUNDS},
        "checkpoint": 0,
    }
    result = run_live(folder, emulate_fleet=emulate_fleet, **job)
    check_committed_rounds(folder, result, ROUNDS)
    fractions: dict[str, list[Scalar]] = {device["name"]: [] for device in devices}
    for record in read_journal(folder / "journal.jsonl"):
        if isinstance(record, Scalar) and record.name == "share":
            fractions[record.node].append(record)
    assert all(len(scalars) == ROUNDS for scalars in fractions.values())
    return fractions


def test_a_device_trains_less_of_the_network_while_it_is_slow(tmp_path: Path) -> None:
    devices: list[Device] = [
        {"name": "free", "flops": "300 MFLOP/s"},
        {"name": "busy", "flops": "300 MFLOP/s", "speed": {"kind": "constant", "level": 0.4}},
    ]
    fractions = _shares(tmp_path / "live", devices, emulate_fleet=True)
    assert statistics.mean(record.value for record in fractions["free"]) > 0.9
    assert all(record.fields["most"] <= 0.4 for record in fractions["busy"])
    assert all(record.fields["least"] > 0.1 for record in fractions["busy"])


@pytest.mark.parametrize(
    ("flops", "slot", "begins", "ends"),
    [("1 MFLOP/s", "1 s", "least", "whole"), ("1000 TFLOP/s", "10 us", "whole", "least")],
    ids=["faster than it is thought to be", "slower"],
)
def test_a_device_adapts_to_its_own_measured_step_times(
    tmp_path: Path, flops: str, slot: str, begins: str, ends: str
) -> None:
    """The fleet file is wrong by a factor of thousands; the device measures its real speed."""
    fractions = _shares(tmp_path / "live", [{"name": "a", "flops": flops}], emulate_fleet=False, slot=slot)["a"]
    bounds = {"least": min(scalar.fields["least"] for scalar in fractions), "whole": 1.0}
    assert bounds["least"] < 0.1
    assert bounds[begins] in (fractions[0].fields["least"], fractions[0].fields["most"])
    assert fractions[-1].value == bounds[ends]
