"""Device processes are killed and frozen at random times: the run continues and its accounting stays correct."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from potluck.journal import Instant
from tests.live.live_scenarios import LEASE, RunControl, check_committed_rounds, run_live
from tests.simulation.runs import instants

ROUNDS = 40  # enough that no machine finishes before the scenario does
NOTICED_S = 1.0  # a killed device
# Nominally slow, so that a run takes more than a second while the processor has hardly anything to do.
STEADY: dict[str, Any] = {
    "fleet": {"devices": [{"name": "d", "count": 4, "flops": "10 MFLOP/s"}], "lease": LEASE},
    "stop": {"rounds": ROUNDS},
}
LATEST_S = 0.9  # at which a fault occurs; the run is not over by then


def _lost(folder: Path, name: str, incarnation: int = 1) -> Instant:
    records = [
        instant
        for instant in instants(folder, "lost")
        if instant.node == name and instant.fields["incarnation"] == incarnation
    ]
    assert len(records) == 1, f"{name} was lost {len(records)} times in life {incarnation}"
    return records[0]


def _came_back(folder: Path, name: str, incarnation: int = 2) -> bool:
    return any(
        instant.node == name and instant.fields["incarnation"] == incarnation for instant in instants(folder, "joined")
    )


def _check_kills(folder: Path, seed: int, killed_count: int, minimum: int) -> None:
    """Kill some devices at once, at a time drawn from the seed; restart them if too few are left."""
    rng = np.random.default_rng(seed)
    names = [f"d-{index}" for index in rng.choice(4, killed_count, replace=False)]
    at, killed = rng.uniform(0.0, LATEST_S), list[float]()

    async def scenario(control: RunControl) -> None:
        await control.node.sleep(at)
        killed.append(control.kill(*names))
        if minimum > 4 - killed_count:
            await control.node.sleep(0.3)
            for name in names:
                control.devices.start_device(name)

    settings = {
        "recipe": ["fedavg", "sync-sgd", "dynacomm"][seed % 3],
        "rounds": {"least": minimum, "patience": "90 s"},
    }
    result = run_live(folder, scenario, emulate_fleet=True, **{**STEADY, **settings})
    check_committed_rounds(folder, result, ROUNDS)
    for name in names:
        assert 0.0 <= _lost(folder, name).at - killed[0] < NOTICED_S, f"{name} was not noticed in time"
        assert _came_back(folder, name) == (minimum > 4 - killed_count)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_device_costs_at_most_its_own_update(tmp_path: Path, seed: int) -> None:
    _check_kills(tmp_path / "run", seed, killed_count=1, minimum=4)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 23))
def test_a_device_is_killed_at_twenty_instants(tmp_path: Path, seed: int) -> None:
    _check_kills(tmp_path / "run", seed, killed_count=1, minimum=seed % 2 + 3)


def test_two_devices_are_killed_at_once_and_the_others_continue(tmp_path: Path) -> None:
    _check_kills(tmp_path / "run", seed=100, killed_count=2, minimum=2)


@pytest.mark.long
def test_all_devices_are_killed_at_once_and_rejoin(tmp_path: Path) -> None:
    _check_kills(tmp_path / "run", seed=101, killed_count=4, minimum=1)


@pytest.mark.wall_clock
def test_a_frozen_device_is_lost_at_its_lease_and_rejoins_when_it_thaws(tmp_path: Path) -> None:
    folder, frozen = tmp_path / "run", list[float]()

    async def scenario(control: RunControl) -> None:
        await control.node.sleep(0.4)
        frozen.append(control.signal("d-1", signal.SIGSTOP))
        try:
            await control.node.sleep(2 * LEASE)
        finally:
            control.signal("d-1", signal.SIGCONT)

    waiting_job = {
        **STEADY,
        "rounds": {"least": 4, "patience": "90 s"},
    }  # the round continues, the next one waits for it
    check_committed_rounds(folder, run_live(folder, scenario, emulate_fleet=True, **waiting_job), ROUNDS)
    took = _lost(folder, "d-1").at - frozen[0]
    assert 0.5 * LEASE < took < LEASE + 0.5, f"it was given up after {took:.2f} s"
    assert _came_back(folder, "d-1")
