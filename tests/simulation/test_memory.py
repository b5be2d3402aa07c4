"""Memory use is flat: each round frees what it needed."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import potluck

ROUNDS, WARM = 500, 100
DEVICES = 5
SHORT_JOB: dict[str, Any] = {
    "recipe": "fedavg",
    "task": {"model": "mlp", "data": {"kind": "synthetic", "train": 50, "test": 10}, "options": {"hidden": [8]}},
    "fleet": {"devices": [{"preset": "pi4", "count": DEVICES}]},
}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _run(recipe: str, results: Any) -> None:
    """Runs in its own process, so that nothing else changes the measurement."""
    resident_bytes: list[int] = []
    potluck.simulate(
        {
            "task": {"model": "mlp", "data": "digits", "options": {"hidden": [256]}},
            "fleet": {"devices": [{"preset": "pi4", "count": 4}]},
            "rounds": {"local": {"kind": "sgd", "steps": 1}},
            "recipe": recipe,
            "stop": {"rounds": ROUNDS},
            "evaluate": 50,
        },
        watch=lambda store, now: resident_bytes.append(_resident_bytes()),
    )
    results.put(resident_bytes)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("recipe", ["fedavg", "fedbuff"])
def test_five_hundred_rounds_need_no_more_than_a_hundred(recipe: str) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_run, args=(recipe, results))
    process.start()
    resident_bytes = results.get(timeout=120)
    process.join(timeout=30)
    assert len(resident_bytes) == ROUNDS
    after_warm_up, at_the_end = max(resident_bytes[WARM - 20 : WARM]), max(resident_bytes[-20:])
    assert at_the_end <= 1.05 * after_warm_up, f"{after_warm_up / 2**20:.1f} MiB grew to {at_the_end / 2**20:.1f} MiB"


def test_updates_are_released_as_soon_as_they_are_merged() -> None:
    """Also when a run is too short for any retry to be due: no timer or list may hold on to finished turns."""
    counts: list[int] = []
    gc.collect()
    gc.disable()  # what only a collection would free counts as held

    def count_turns(store: object, now: float) -> None:
        counts.append(sum(type(each).__name__ == "TurnRecord" for each in gc.get_objects()))

    try:
        potluck.simulate({**SHORT_JOB, "stop": {"rounds": 6}}, threads=0, watch=count_turns)
    finally:
        gc.enable()
    assert len(counts) == 6
    assert max(counts) <= 2 * DEVICES
