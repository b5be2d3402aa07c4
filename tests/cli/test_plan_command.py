from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.cli.plan_command import show_pipeline
from potluck.errors import UserError
from potluck.job import make
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


def planned(recipe: str, memory: str = "4 GB", small: str = "", **pipeline: Any) -> potluck.JobPlan:
    devices = [
        {"name": name, "flops": f"{speed} GFLOP/s", "memory": small if small and name == "c" else memory}
        for name, speed in (("a", 20), ("b", 2), ("c", 10))
    ]
    job = make(
        {
            "task": {"model": "vgg9", "data": "cifar10"},
            "recipe": recipe,
            "fleet": {"devices": devices},
            "stop": {"rounds": 1},
            "timing_only": True,
            "pipeline": {"batch": 64, **pipeline},
        }
    )
    return potluck.plan(job)


@pytest.mark.parametrize("recipe", ["ftpipehd", "pipedream", "gpipe", "single"])
def test_every_stage_is_in_the_table_and_in_the_drawing(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(recipe)
    assert plan.pipeline is not None
    show_pipeline(plan.job, plan.pipeline, 90)
    said = capsys.readouterr().out
    stages = plan.to_dict()["stages"]
    assert "is the slowest" in said
    for place, stage in enumerate(stages):
        assert f"{stage['layers'][0]}-{stage['layers'][1]}" in said
        assert f"{place} {stage['device']} " in said
    assert [stage["layers"][0] for stage in stages[1:]] == [stage["layers"][1] + 1 for stage in stages[:-1]]
    assert ("left out" in said) == (len(stages) < 3)


@pytest.mark.parametrize("recipe", ["ftpipehd", "ftpipehd-as-published", "gpipe", "single"])
def test_what_cannot_fit_is_said_in_one_line_before_anything_begins(recipe: str) -> None:
    short = r"^[abc] is [\d.]+ MB short of memory: as stage \d it needs .*smaller batch"
    with pytest.raises(UserError, match=short) as said:
        planned(recipe, memory="20 MB")
    assert "\n" not in str(said.value)


def test_a_small_device_gets_what_fits() -> None:
    """By its weights alone it would keep its four layers, which take 23.6 MB."""

    def share(memory: str) -> int:
        stages = planned("ftpipehd", small=memory).to_dict()["stages"]
        return sum(stage["layers"][1] - stage["layers"][0] + 1 for stage in stages if stage["device"] == "c")

    assert (share("60 MB"), share("30 MB")) == (4, 0)


def test_windows_that_are_too_narrow_are_told() -> None:
    narrow = planned("ftpipehd", schedule={"kind": "1f1b", "fill": "published"}, partition="equal")
    wide = planned("ftpipehd", partition="equal")
    assert narrow.to_dict()["period_s"] >= wide.to_dict()["period_s"]
