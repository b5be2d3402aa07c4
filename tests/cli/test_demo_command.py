from __future__ import annotations

import time
from typing import Any

import pytest

from potluck.cli import demo_command
from potluck.cli.demo_command import DemoRun, explain_winner
from potluck.run import Result
from tests.cli.calling import Shell


def _attempt(recipe: str, time_s: float, sent: int, accuracy: float = 0.96) -> DemoRun:
    devices = {
        "desktop": {"wait_s": 0.9 * time_s, "updates": 40},
        "phone": {"wait_s": 0.1 * time_s, "updates": 2},
    }
    summary: dict[str, Any] = {
        "time_s": time_s, "bytes": sent, "accuracy": accuracy, "devices": devices, "limit": "phone was busy",
    }  # fmt: skip
    return DemoRun(recipe, Result("done", "", summary, None, None), [(time_s, accuracy)])


def test_the_verdict_names_winner_margin_and_reason() -> None:
    lines = explain_winner([_attempt("slow", 10.0, 5_000_000), _attempt("fast", 2.0, 9_000_000)])
    assert lines[0] == "fast won: it took 2 s of simulated time, 5.0 times as fast as slow."
    assert "slow 5 MB, fast 9 MB" in lines[1]
    assert "50 % with fast, 50 % with slow" in lines[2]
    assert "Updates from desktop and from phone: fast 40 and 2, slow 40 and 2" in lines[3]
    assert lines[4].startswith("What slowed slow down")


def test_a_recipe_that_misses_the_target_has_not_won() -> None:
    lines = explain_winner([_attempt("soon", 1.0, 1, accuracy=0.5), _attempt("later", 5.0, 1)])
    assert lines[0].startswith("later won")
    assert explain_winner([_attempt("soon", 1.0, 1, accuracy=0.5)]) == ["No recipe reached 95.0 % within the budget."]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same demo with a smaller model."""
    full_demo_job = demo_command.demo_job

    def job(recipe: str, seed: int) -> dict[str, Any]:
        task = {"model": "mlp", "data": "digits", "options": {"hidden": [32]}}
        return {**full_demo_job(recipe, seed), "task": task, "stop": {"rounds": 40, "accuracy": 0.9}}

    monkeypatch.setattr(demo_command, "demo_job", job)
    monkeypatch.setattr(demo_command, "TARGET", 0.9)


@pytest.mark.usefixtures("small")
def test_the_demo_prints_the_comparison_and_writes_no_files(potluck: Shell, folder: Any) -> None:
    before = sorted(folder.iterdir())
    result = potluck("demo")
    assert result.code == 0
    assert all(f"\n{recipe} " in result.out for recipe in demo_command.RECIPES)
    assert "won: it took" in result.out
    assert "█" in result.out
    assert sorted(folder.iterdir()) == before


@pytest.mark.usefixtures("small")
def test_the_same_seed_gives_the_same_demo(potluck: Shell) -> None:
    races = [potluck("demo", "--json", "--threads", threads).json for threads in "01"]
    for race in races:
        for recipe in race["recipes"].values():
            del recipe["wall_s"]
    assert races[0] == races[1]


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_all_three_recipes_reach_the_target_in_time(potluck: Shell, seed: str) -> None:
    started_at = time.monotonic()
    report = potluck("demo", "--json", "--seed", seed).json
    assert time.monotonic() - started_at < 90
    assert all(recipe["reached"] for recipe in report["recipes"].values())
