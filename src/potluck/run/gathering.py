"""What a run of class groups leaves behind: one ordinary network in one file, and the groups that nobody trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from potluck.model.carving import Carver
from potluck.model.decoupled.carving import GroupCarver
from potluck.model.decoupled.files import save
from potluck.model.decoupled.grouped import Grouped

__all__ = ["FILE", "gathered"]

FILE = "assembled.safetensors"


def gathered(module: nn.Module | None, carver: Carver | None, folder: Path | None) -> dict[str, Any]:
    """Put the network together, keep it, and say what is missing; nothing for networks of another kind."""
    if not isinstance(module, Grouped):
        return {}
    if isinstance(carver, GroupCarver):
        carver.calibrate(module)
    if folder is not None:
        save(module.assemble(), folder / FILE)
    return {"untrained_groups": list(module.untrained())}
