"""User code that raises ends a run in the same way in both worlds, wherever it runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.run.small_job import SMALL, USER_PARTS, WORLDS, run_small_job


@pytest.mark.parametrize("world", WORLDS)
def test_a_loss_that_raises_on_a_device_ends_the_run(world: str, tmp_path: Path) -> None:
    result = run_small_job(world, tmp_path / "run", task=f"{USER_PARTS}:build_burnt_task")
    assert (result.status, result.exit_code) == ("failed", 1)
    assert re.fullmatch(r"d-[01]: ZeroDivisionError: burnt \(.*user_parts\.py:\d+\)", result.reason)
    assert result.summary["reason"] == result.reason
    assert 'raise ZeroDivisionError("burnt")' in (tmp_path / "run" / "error.txt").read_text()


@pytest.mark.parametrize("world", WORLDS)
def test_a_part_that_raises_on_the_coordinator_ends_the_run(world: str, tmp_path: Path) -> None:
    rounds = {**SMALL["rounds"], "merge": f"{USER_PARTS}:BrokenMerge"}
    result = run_small_job(world, tmp_path / "run", rounds=rounds)
    assert (result.status, result.exit_code) == ("failed", 1)
    assert re.fullmatch(r"coordinator: KeyError: 'pepper' \(.*user_parts\.py:\d+\)", result.reason)
    assert 'raise KeyError("pepper")' in (tmp_path / "run" / "error.txt").read_text()
