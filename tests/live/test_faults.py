"""Device processes killed and frozen at random instants: the run goes on, and its books stay right."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.journal import Instant
from tests.live.running import LEASE, Scene, check_books, run_live
from tests.simulation.runs import instants

ROUNDS = 40  # so many that no machine is through before the story is
NOTICED_S = 1.0  # a killed device
# Slow on paper, so that a run takes more than a second while the processor has hardly anything to do.
STEADY: dict[str, Any] = {
    "fleet": {"devices": [{"name": "d", "count": 4, "flops": "10 MFLOP/s"}], "lease": LEASE},
    "stop": {"rounds": ROUNDS},
}
LATEST_S = 0.9  # at which something happens; the run is not over by then


def _lost(folder: Path, name: str, incarnation: int = 1) -> Instant:
    records = [
        note for note in instants(folder, "lost") if note.node == name and note.fields["incarnation"] == incarnation
    ]
    assert len(records) == 1, f"{name} was lost {len(records)} times in life {incarnation}"
    return records[0]


def _came_back(folder: Path, name: str, incarnation: int = 2) -> bool:
    return any(note.node == name and note.fields["incarnation"] == incarnation for note in instants(folder, "joined"))


def _check_kills(folder: Path, seed: int, killed_count: int, minimum: int) -> None:
    """Kill so many at once, at an instant that the seed draws; start them again where the rest is not enough."""
    rng = np.random.default_rng(seed)
    names = [f"d-{index}" for index in rng.choice(4, killed_count, replace=False)]
    at, killed = rng.uniform(0.0, LATEST_S), list[float]()

    async def scenario(scene: Scene) -> None:
        await scene.node.sleep(at)
        killed.append(scene.kill(*names))
        if minimum > 4 - killed_count:
            await scene.node.sleep(0.3)
            for name in names:
                scene.crew.start_device(name)

    settings = {
        "recipe": ["fedavg", "sync-sgd", "dynacomm"][seed % 3],
        "rounds": {"least": minimum, "patience": "90 s"},
    }
    result = run_live(folder, scenario, act_out=True, **{**STEADY, **settings})
    check_books(folder, result, ROUNDS)
    for name in names:
        assert 0.0 <= _lost(folder, name).at - killed[0] < NOTICED_S, f"{name} was not noticed in time"
        assert _came_back(folder, name) == (minimum > 4 - killed_count)


@pytest.mark.parametrize("seed", range(3))
def test_a_device_that_is_killed_costs_its_own_update_at_most(tmp_path: Path, seed: int) -> None:
    _check_kills(tmp_path / "run", seed, killed_count=1, minimum=4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 23))
def test_a_device_is_killed_at_twenty_instants(tmp_path: Path, seed: int) -> None:
    _check_kills(tmp_path / "run", seed, killed_count=1, minimum=seed % 2 + 3)


def test_two_are_killed_at_once_and_the_others_go_on(tmp_path: Path) -> None:
    _check_kills(tmp_path / "run", seed=100, killed_count=2, minimum=2)


@pytest.mark.long
def test_all_are_killed_at_once_and_come_back(tmp_path: Path) -> None:
    _check_kills(tmp_path / "run", seed=101, killed_count=4, minimum=1)


@pytest.mark.wall_clock
def test_a_frozen_device_is_given_up_at_its_lease_and_comes_back_when_it_thaws(tmp_path: Path) -> None:
    folder, frozen = tmp_path / "run", list[float]()

    async def scenario(scene: Scene) -> None:
        await scene.node.sleep(0.4)
        frozen.append(scene.signal("d-1", signal.SIGSTOP))
        try:
            await scene.node.sleep(2 * LEASE)
        finally:
            scene.signal("d-1", signal.SIGCONT)

    waiting_job = {**STEADY, "rounds": {"least": 4, "patience": "90 s"}}  # the round goes on, the next one waits for it
    check_books(folder, run_live(folder, scenario, act_out=True, **waiting_job), ROUNDS)
    took = _lost(folder, "d-1").at - frozen[0]
    assert 0.5 * LEASE < took < LEASE + 0.5, f"it was given up after {took:.2f} s"
    assert _came_back(folder, "d-1")
