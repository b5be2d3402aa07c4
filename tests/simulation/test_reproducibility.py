"""The same seed gives the same run, byte for byte; a resumed run equals one that was never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import potluck
from tests.simulation.runs import RECIPES, journal, simulate

FAULTY = {
    "devices": [{"preset": "laptop", "count": 3}, {"preset": "pi4", "count": 3, "link": {"loss": 0.05}}],
    "faults": [
        {"kind": "crash", "device": "pi4-*", "every": "4 s", "restart": "300 ms"},
        {"kind": "partition", "device": "laptop-1", "every": "3 s", "lasting": "800 ms"},
        {"kind": "slow", "device": "laptop-2", "every": "2 s", "lasting": "1 s"},
    ],
    "lease": "500 ms",
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_number_of_threads_changes_nothing(tmp_path: Path, recipe: str) -> None:
    for threads in (0, 1, 3):
        simulate(tmp_path / str(threads), recipe=recipe, fleet=FAULTY, _threads=threads)
    assert journal(tmp_path / "0") == journal(tmp_path / "1") == journal(tmp_path / "3")


@pytest.mark.parametrize("recipe", RECIPES)
def test_another_seed_is_another_run(tmp_path: Path, recipe: str) -> None:
    simulate(tmp_path / "a", recipe=recipe, seed=0)
    simulate(tmp_path / "b", recipe=recipe, seed=1)
    assert journal(tmp_path / "a") != journal(tmp_path / "b")


@pytest.mark.parametrize("fleet", ["kitchen-table", FAULTY], ids=["steady", "faulty"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_resumed_after_any_round_equals_the_uninterrupted_one(
    tmp_path: Path, recipe: str, fleet: dict[str, object]
) -> None:
    uninterrupted = simulate(tmp_path / "whole", recipe=recipe, fleet=fleet)
    for rounds in range(1, 8) if fleet == FAULTY else (2, 5):
        folder = tmp_path / str(rounds)
        simulate(folder, recipe=recipe, fleet=fleet, stop={"rounds": rounds})
        resumed = potluck.resume(folder, overrides=["stop.rounds=8"])
        assert journal(folder) == journal(tmp_path / "whole"), f"stopped after {rounds} rounds"
        _assert_same_weights(uninterrupted, resumed)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("after", [1, 30, 60])
def test_a_run_interrupted_at_any_time_can_be_resumed(tmp_path: Path, recipe: str, after: int) -> None:
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    uninterrupted = simulate(tmp_path / "whole", recipe=recipe)
    stopped = simulate(tmp_path / "stopped", recipe=recipe, _stopping=stopping)
    assert stopped.status == "interrupted"
    assert stopped.exit_code == 130
    resumed = potluck.resume(tmp_path / "stopped")
    assert journal(tmp_path / "stopped") == journal(tmp_path / "whole")
    _assert_same_weights(uninterrupted, resumed)


def test_a_run_killed_while_writing_can_be_resumed(tmp_path: Path) -> None:
    """A kill leaves a partial journal line and half a checkpoint; both are ignored."""
    uninterrupted = simulate(tmp_path / "whole", recipe="fedavg")
    simulate(tmp_path / "killed", recipe="fedavg", stop={"rounds": 5})
    with (tmp_path / "killed" / "journal.jsonl").open("ab") as file:
        file.write(b'{"kind":"span","node":"pi4-0","na')
    (tmp_path / "killed" / "checkpoints" / "00000009.partial").write_bytes(b"half")
    (tmp_path / "killed" / "summary.json").unlink()
    resumed = potluck.resume(tmp_path / "killed", overrides=["stop.rounds=8"])
    assert journal(tmp_path / "killed") == journal(tmp_path / "whole")
    _assert_same_weights(uninterrupted, resumed)


def _assert_same_weights(first: potluck.Result, second: potluck.Result) -> None:
    assert first.module is not None
    assert second.module is not None
    for actual, reference in zip(first.module.state_dict().values(), second.module.state_dict().values(), strict=True):
        assert torch.equal(actual, reference)
