"""Devices whose computation hangs while they stay connected: rounds go on without them, and welcome them back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import potluck
from potluck.fleet.faults import Fault
from potluck.job import make
from potluck.settings import decode_settings
from tests.simulation.runs import RECIPES, instants, journal, rounds
from tests.simulation.test_fault_sweep import ROUNDS, random_job

SEEDS = 6

LINK = {"up": "4 Mbit/s", "down": "4 Mbit/s", "latency": "5 ms"}


def _job(recipe: str, lasting: str | None, **tables: Any) -> potluck.Job:
    hang: dict[str, Any] = {"kind": "hang", "device": "b", "at": "2 s"}
    fleet = {
        "devices": [{"name": name, "flops": "2 MFLOP/s", "link": LINK} for name in "abc"],
        "faults": [hang if lasting is None else {**hang, "lasting": lasting}],
    }
    return make(
        {
            "recipe": recipe, "task": {"model": "mlp", "data": "digits", "options": {"hidden": [16]}}, "fleet": fleet,
            "timing_only": True, "samples": 64, "rounds": {"retry": "500 ms", "turn_patience": "5 s"}, "checkpoint": 4,
            "stop": {"time": "24 s"}, **tables,
        }
    )  # fmt: skip


def _merged(folder: Path, device: str) -> list[float]:
    """When rounds were committed that have an update of the device."""
    return [span.end for span in rounds(folder) if device in {name for name, _ in span.fields["devices"]}]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_goes_on_without_a_device_that_hangs_for_ever(tmp_path: Path, recipe: str) -> None:
    result = potluck.simulate(_job(recipe, None), folder=tmp_path / "run")
    assert result.status == "done"
    assert [event.node for event in instants(tmp_path / "run", "left out")] == ["b"]
    committed = [0.0, *(span.end for span in rounds(tmp_path / "run"))]
    assert max(np.diff(committed)) < 7.0, "one round waits for its patience, and no other"
    assert max(_merged(tmp_path / "run", "b")) < 4.0
    assert len(_merged(tmp_path / "run", "a")) > 10


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_device_that_continues_is_welcomed_back(tmp_path: Path, recipe: str) -> None:
    folder = tmp_path / "run"
    assert potluck.simulate(_job(recipe, "10 s"), folder=folder).status == "done"
    (back,) = instants(folder, "answers again")
    assert back.node == "b"
    assert 12.0 <= back.at < 13.0
    merged = _merged(folder, "b")
    assert [at for at in merged if at > 12.0]
    assert not [at for at in merged if 8.0 < at < 12.0]
    turns = [turn for span in rounds(folder) for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns)), "an update was merged twice"


@pytest.mark.parametrize("recipe", ["fedavg", "fedbuff", "fedavg-quorum"])
def test_a_run_resumed_while_a_device_hangs_continues_as_if_never_stopped(tmp_path: Path, recipe: str) -> None:
    whole = potluck.simulate(_job(recipe, "10 s"), folder=tmp_path / "whole")
    job = _job(recipe, "10 s")
    half = next(span.fields["round"] for span in rounds(tmp_path / "whole") if span.end > 9.0) // 4 * 4
    potluck.simulate(
        msgspec.structs.replace(job, stop=msgspec.structs.replace(job.stop, rounds=half)), folder=tmp_path / "parts"
    )
    (tmp_path / "parts" / "job.toml").write_text((tmp_path / "whole" / "job.toml").read_text())
    resumed = potluck.resume(tmp_path / "parts")
    assert resumed.summary["rounds"] == whole.summary["rounds"]
    assert journal(tmp_path / "parts") == journal(tmp_path / "whole")


@pytest.mark.parametrize("recipe", RECIPES)
def test_random_hangs_among_other_faults(tmp_path: Path, recipe: str) -> None:
    """Replay a seed with `check`; every run ends, and no update is merged twice."""
    for seed in range(SEEDS):
        with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
            check(recipe, seed, Path(directory) / "run")


def check(recipe: str, seed: int, folder: Path) -> None:
    job, rng = random_job(recipe, seed), np.random.default_rng(10_000 + seed)
    hangs = [_random_hang(rng, len(job.fleet.members)) for _ in range(rng.integers(1, 4))]
    faults = (*job.fleet.faults, *(decode_settings(hang, Fault) for hang in hangs))
    fleet = msgspec.structs.replace(job.fleet, faults=faults)
    rounds_settings = msgspec.structs.replace(job.rounds, turn_patience=type(job.rounds.retry)(rng.uniform(0.5, 5)))
    result = potluck.simulate(msgspec.structs.replace(job, fleet=fleet, rounds=rounds_settings), folder=folder)
    committed = rounds(folder)
    assert [span.fields["round"] for span in committed] == list(range(len(committed))), seed
    turns = [turn for span in committed for _, turn in span.fields["devices"]]
    assert len(turns) == len(set(turns)), f"seed {seed}: an update was merged twice"
    if result.status == "done":
        assert len(committed) == ROUNDS, seed
    else:
        assert "no progress for 1 min" in result.reason, (seed, result.reason)


def _random_hang(rng: np.random.Generator, devices: int) -> dict[str, Any]:
    fault = {"kind": "hang", "device": str(rng.choice(["*", f"d{rng.integers(devices)}"]))}
    if rng.random() < 0.4:
        return {**fault, "at": f"{rng.uniform(0.05, 4)} s"}
    when = "at" if rng.random() < 0.5 else "every"
    return {**fault, when: f"{rng.uniform(0.05, 4)} s", "lasting": f"{rng.uniform(0.1, 20)} s"}
