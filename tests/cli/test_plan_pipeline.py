"""The planned partition as a table, a chart and JSON."""

from __future__ import annotations

from typing import Any

import pytest

import potluck
from potluck.cli.plan_pipeline import show_pipeline
from potluck.errors import UserError
from potluck.job import make


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
    output = capsys.readouterr().out
    stages = plan.to_dict()["stages"]
    assert "is the slowest" in output
    for index, stage in enumerate(stages):
        assert f"{stage['layers'][0]}-{stage['layers'][1]}" in output
        assert f"{index} {stage['device']} " in output
    assert [stage["layers"][0] for stage in stages[1:]] == [stage["layers"][1] + 1 for stage in stages[:-1]]
    assert ("left out" in output) == (len(stages) < 3)


@pytest.mark.parametrize("recipe", ["ftpipehd", "ftpipehd-as-published", "gpipe", "single"])
def test_a_model_that_does_not_fit_is_refused_before_the_run_starts(recipe: str) -> None:
    short = r"^[abc] is [\d.]+ MB short of memory: as stage \d it needs .*smaller batch"
    with pytest.raises(UserError, match=short) as error:
        planned(recipe, memory="20 MB")
    assert "\n" not in str(error.value)


def test_a_small_device_gets_only_the_layers_that_fit() -> None:
    """Counting weights only it would keep its four layers, which take 23.6 MB."""

    def layers_kept(memory: str) -> int:
        stages = planned("ftpipehd", small=memory).to_dict()["stages"]
        return sum(stage["layers"][1] - stage["layers"][0] + 1 for stage in stages if stage["device"] == "c")

    assert (layers_kept("60 MB"), layers_kept("30 MB")) == (4, 0)


def test_windows_that_are_too_narrow_are_reported() -> None:
    narrow = planned("ftpipehd", schedule={"kind": "1f1b", "fill": "published"}, partition="equal")
    wide = planned("ftpipehd", partition="equal")
    assert narrow.to_dict()["period_s"] >= wide.to_dict()["period_s"]
