"""Random fault scripts: every run ends, no update is merged twice, no committed round is lost.

A failing seed prints the command that replays it: `python -m tests.simulation.test_fault_sweep RECIPE SEED`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import potluck
from potluck.job import make
from tests.simulation.runs import RECIPES, instants, rounds

SEEDS, MANY = 300, 10_000
CHUNK = 50
ROUNDS = 6


def random_job(recipe: str, seed: int) -> potluck.Job:
    """A small fleet of random devices with a random fault script."""
    rng = np.random.default_rng(seed)
    devices = [_random_device(rng, index) for index in range(rng.integers(1, 7))]
    faults = [_random_fault(rng, len(devices)) for _ in range(rng.integers(0, 6))]
    tables: dict[str, Any] = {
        "task": {"model": "mlp", "data": "digits", "options": {"hidden": [16]}},
        "recipe": recipe,
        "seed": seed,
        "timing_only": True,
        "samples": 64,
        "checkpoint": int(rng.integers(0, 4)),
        "stop": {"rounds": ROUNDS},
        "fleet": {"devices": devices, "faults": faults, "lease": f"{rng.uniform(0.2, 3)} s"},
        "rounds": {
            "devices": int(rng.integers(0, 4)),
            "least": int(rng.integers(1, len(devices) + 1)),
            "patience": "60 s",
            "retry": "500 ms",
        },
    }
    return make(tables)


def check(recipe: str, seed: int, folder: Path) -> str:
    """Run the job of this seed, check its journal, and return its status."""
    result = potluck.simulate(random_job(recipe, seed), folder=folder)
    committed = rounds(folder)
    assert [span.fields["round"] for span in committed] == list(range(len(committed))), "a round is missing or repeated"
    turns = [turn for span in committed for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns)), "an update was merged twice"
    assert all(span.fields["devices"] for span in committed), "a round without an update was committed"
    assert len(committed) == result.summary["rounds"]
    assert result.summary["refused"] == 0, "they are all honest"
    if result.status == "done":
        assert len(committed) == ROUNDS
    else:
        assert result.status == "failed"
        assert "no progress for 1 min" in result.reason
        assert "devices needed are connected" in result.reason or "still waiting for" in result.reason
    lost = instants(folder, "lost")
    assert len({(instant.node, instant.fields["incarnation"], instant.at) for instant in lost}) == len(lost)
    return result.status


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_run_ends_and_counts_every_update_once(tmp_path: Path, recipe: str, first: int) -> None:
    sweep(tmp_path, recipe, range(first, first + CHUNK))


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_ten_thousand_fault_scripts(tmp_path: Path, recipe: str) -> None:
    sweep(tmp_path, recipe, range(SEEDS, MANY))


def sweep(folder: Path, recipe: str, seeds: range) -> None:
    for seed in seeds:
        try:
            with tempfile.TemporaryDirectory(dir=folder) as directory:
                check(recipe, seed, Path(directory) / "run")
        except Exception as error:
            pytest.fail(f"{error!r}; replay with: python -m tests.simulation.test_fault_sweep {recipe} {seed}")


def _random_device(rng: np.random.Generator, index: int) -> dict[str, Any]:
    link = {
        "up": f"{rng.uniform(0.5, 50)} Mbit/s",
        "down": f"{rng.uniform(0.5, 50)} Mbit/s",
        "latency": f"{rng.uniform(0, 50)} ms",
        "loss": float(rng.choice([0.0, 0.0, 0.1])),
    }
    device: dict[str, Any] = {"name": f"d{index}", "flops": f"{rng.uniform(1, 200)} MFLOP/s", "link": link}
    if rng.random() < 0.3:
        device["speed"] = {"kind": "random-walk", "low": 0.05, "every": f"{rng.uniform(0.02, 2)} s"}
    if rng.random() < 0.2:
        device["available"] = {"kind": "random-walk", "low": 0.0, "step": 0.5, "every": f"{rng.uniform(0.2, 2)} s"}
    return device


def _random_fault(rng: np.random.Generator, devices: int) -> dict[str, Any]:
    kind = str(rng.choice(["crash", "crash", "restart", "leave", "join", "partition", "slow", "lose"]))
    fault: dict[str, Any] = {"kind": kind, "device": str(rng.choice(["*", f"d{rng.integers(devices)}"]))}
    when = "at" if kind in ("join", "leave") or rng.random() < 0.4 else "every"
    fault[when] = f"{rng.uniform(0.05, 4)} s"
    duration = f"{rng.uniform(0.01, 4)} s"
    if kind == "crash" and rng.random() < 0.8:
        fault["restart"] = duration
    if kind == "leave" and rng.random() < 0.7:
        fault["back"] = duration
    if kind in ("partition", "slow", "lose"):
        fault["lasting"] = duration
    return fault


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(check(sys.argv[1], int(sys.argv[2]), Path(directory) / "run"))  # noqa: T201
