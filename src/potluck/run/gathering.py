"""The network that a run leaves behind, in one file; of class groups an ordinary one, and which nobody trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from potluck.model import weights
from potluck.model.carving import Carver
from potluck.model.decoupled.carving import GroupCarver
from potluck.model.decoupled.files import save
from potluck.model.decoupled.grouped import Grouped

__all__ = ["FILE", "gathered"]

FILE = "assembled.safetensors"


def gathered(module: nn.Module | None, carver: Carver | None, folder: Path | None) -> dict[str, Any]:
    """Keep the network, put together where it was taken apart; says what is missing of it."""
    if not isinstance(module, Grouped):
        if module is not None and folder is not None:
            weights.save(module, folder / weights.FILE)
        return {}
    if isinstance(carver, GroupCarver):
        carver.calibrate(module)
    if folder is not None:
        save(module.assemble(), folder / FILE)
    return {"untrained_groups": list(module.untrained())}
