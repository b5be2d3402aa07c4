"""A device's optimizer state in the live world."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.run.small_job import WORLDS, run_small_job


def test_both_worlds_keep_the_state_of_an_optimizer(tmp_path: Path) -> None:
    """Also where the last step of a turn is taken layer by layer, which only a live device does."""
    local = {"kind": "adamw", "lr": 0.01, "accumulate": 2, "state": "keep"}
    rounds = {"batching": {"size": 10}, "local": local, "transfer": "layer-by-layer", "patience": "60 s"}
    weights = []
    for world in WORLDS:
        result = run_small_job(world, tmp_path / world, rounds=rounds, stop={"rounds": 3})
        assert result.module is not None
        weights.append(torch.cat([param.detach().reshape(-1) for param in result.module.parameters()]))
    assert torch.equal(*weights)
