"""The best model of a run by a metric, as `best.safetensors` in its folder; it loads like `model.safetensors`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import nn

from potluck.loops.run_progress import BestModel
from potluck.model import weights_file

__all__ = ["BestModelFile"]


@dataclass(frozen=True)
class BestModelFile:
    """Keeping the newest version costs nothing, since versions never change in place; it is written when asked."""

    metric: str
    keep: Callable[[], None]  # the newest version as the best one
    build_module: Callable[[], nn.Module]  # with the weights of the kept version

    def write(self, folder: Path, record: BestModel) -> None:
        """Replace the file; what was measured travels in its header."""
        header = msgspec.json.encode(record).decode()
        weights_file.save_weights(self.build_module(), folder / weights_file.BEST_FILE, header)

    def read_record(self, folder: Path) -> BestModel | None:
        """What the file in this folder measured; None if there is none by this metric.

        After a crash the file may be newer than the checkpoint: its model is then still the best one so far.
        """
        try:
            record = msgspec.json.decode(weights_file.read_header(folder / weights_file.BEST_FILE), type=BestModel)
        except (OSError, msgspec.DecodeError):
            return None
        return record if record.metric == self.metric else None
