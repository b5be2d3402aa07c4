from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.calling import Shell

ONE = """
[[devices]]
name = "pi"
preset = "pi4"
link = {up = "8 Mbit/s", down = "20 Mbit/s", latency = "3 ms", overhead = "2 ms"}
"""


def _plan(potluck: Shell, *more: str) -> dict[str, Any]:
    (device_plan,) = potluck("plan", "job.toml", "--json", *more).json["devices"]
    return dict(device_plan)


@pytest.mark.parametrize("recipe", ["sync-sgd", "fedavg"])
def test_the_predicted_time_equals_the_simulated_time(potluck: Shell, folder: Path, recipe: str) -> None:
    (folder / "fleet.toml").write_text(ONE)
    expected = _plan(potluck, "--set", f"recipe={recipe}")["round_s"]["sequential"]
    arguments = ("run", "job.toml", "--timing-only", "--json", "--set", "stop.rounds=50", "--set", f"recipe={recipe}")
    run = potluck(*arguments).json
    assert run["time_s"] / run["rounds"] == pytest.approx(expected, rel=0.01)


def test_only_duplex_beats_the_optimal_plan(potluck: Shell, folder: Path) -> None:
    (folder / "fleet.toml").write_text(ONE)
    times = _plan(potluck, "--set", "recipe=sync-sgd", "--set", "task.options.hidden=[400, 400, 400]")["round_s"]
    assert times["optimal"] == min(time for name, time in times.items() if name != "duplex")
    assert times["optimal"] < times["sequential"]
    assert times["duplex"] <= times["optimal"]


def test_identical_devices_share_a_row_and_the_slowest_is_drawn(potluck: Shell, folder: Path) -> None:
    result = potluck("plan", "job.toml", "--set", "fleet=kitchen-table", "--set", "recipe=sync-sgd")
    assert result.code == 0
    rows = [line for line in result.out.splitlines() if " alike " in line]
    assert [row.split()[0] for row in rows] == ["laptop-0", "pi4-0"]
    assert "\nphone, sequential: " in result.out
    assert "\nphone, optimal: " in result.out
    assert "\nbackward " in result.out


def test_the_axis_ends_with_the_time_in_the_headline(potluck: Shell, folder: Path) -> None:
    (folder / "fleet.toml").write_text(ONE)
    drawings = potluck("plan", "job.toml").out.split("\n\n")[1:]
    assert len(drawings) == 2
    for drawing in drawings:
        head, *_, axis = drawing.strip().splitlines()
        assert axis.endswith(f" {head.partition(': ')[2]}")
        assert axis.strip().startswith("0 s ")


def test_a_device_can_be_selected(potluck: Shell, folder: Path) -> None:
    result = potluck("plan", "job.toml", "--set", "fleet=kitchen-table", "--device", "pi4-1", "--width", "60")
    assert "\npi4-0, optimal: " in result.out
    drawing = result.out.split("optimal: ")[-1].splitlines()[1:]
    assert max(map(len, drawing)) <= 60
