"""A user's sub-model parts of any kind work in both worlds from `package.module:Class`, with no change elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import potluck
from tests.run.small_job import SMALL, USER_PARTS, WORLDS, run_small_job
from tests.run.user_parts import build_task


@pytest.mark.parametrize("world", WORLDS)
def test_a_width_part(world: str, tmp_path: Path) -> None:
    """Units outside the trained half keep their initial weights."""
    rounds = {**SMALL["rounds"], "submodel": {"kind": f"{USER_PARTS}:HalfWidth", "kept": 0.5}}
    result = run_small_job(world, tmp_path / "run", rounds=rounds)
    assert result.status == "done", result.reason
    assert isinstance(result.module, nn.Sequential)
    before, after = build_task().build_module(0).state_dict(), result.module.state_dict()
    assert torch.equal(before["1.weight"][4:], after["1.weight"][4:])
    assert not torch.equal(before["1.weight"][:4], after["1.weight"][:4])


@pytest.mark.parametrize("world", WORLDS)
def test_a_whole_model_part(world: str, tmp_path: Path) -> None:
    rounds = {**SMALL["rounds"], "submodel": f"{USER_PARTS}:LinearModel"}
    result = run_small_job(world, tmp_path / "run", rounds=rounds)
    assert result.status == "done", result.reason
    assert result.summary["parameters"] == 12 * 4 + 4
    assert result.module is not None
    assert len(list(result.module.parameters())) == 2


def test_both_kinds_can_be_planned() -> None:
    full, half, linear = (
        potluck.plan({**SMALL, "rounds": {"submodel": part}}).rounds[0].worker
        for part in ("whole", f"{USER_PARTS}:HalfWidth", f"{USER_PARTS}:LinearModel")
    )
    assert sum(half.forward) < sum(full.forward)
    assert sum(linear.pull) < sum(full.pull)
