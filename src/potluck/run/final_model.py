"""The network that a run leaves behind, in one file; of class groups an ordinary one, and which nobody trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from potluck.model import weights_file
from potluck.model.decoupled.assembled_file import save
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.model.decoupled.grouped_network import GroupedNetwork
from potluck.model.submodel_interface import SubmodelExtractor

__all__ = ["FILE", "save_final_model"]

FILE = "assembled.safetensors"


def save_final_model(module: nn.Module | None, carver: SubmodelExtractor | None, folder: Path | None) -> dict[str, Any]:
    """Keep the network, put together where it was taken apart; says what is missing of it."""
    if not isinstance(module, GroupedNetwork):
        if module is not None and folder is not None:
            weights_file.save_weights(module, folder / weights_file.WEIGHTS_FILE)
        return {}
    if isinstance(carver, GroupExtractor):
        carver.calibrate_module(module)
    if folder is not None:
        save(module.assemble(), folder / FILE)
    return {"untrained_groups": list(module.untrained_groups())}
