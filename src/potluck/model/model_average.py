"""The exponential moving average of a model over rounds, which is steadier than its newest version.

Where devices hold few classes, each round pulls the model towards those of the devices that took part, and accuracies
jump. The average is what is evaluated and saved; devices go on training the newest version.

    decay of round t = min(decay, (1 + t) / (10 + t)), so that the initial weights are soon forgotten
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from potluck.model.model_state import ModelState

__all__ = ["ModelAverage"]

_PREFIX = "average."


class ModelAverage:
    """The average so far; every version of it is a new state, as those of the model are."""

    def __init__(self, decay: float, initial: ModelState) -> None:
        self._decay = decay
        self._rounds = 0
        self.state = ModelState(initial.params.clone(), initial.buffers.clone())

    def add_version(self, newest: ModelState) -> None:
        """A round has made a new version of the model."""
        self._rounds += 1
        weight = 1.0 - min(self._decay, (1 + self._rounds) / (10 + self._rounds))
        self.state = ModelState(
            torch.lerp(self.state.params, newest.params, weight), torch.lerp(self.state.buffers, newest.buffers, weight)
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must contain."""
        return {
            f"{_PREFIX}params": self.state.params,
            f"{_PREFIX}buffers": self.state.buffers,
            f"{_PREFIX}rounds": torch.tensor(self._rounds),
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The reverse of `tensors`."""
        self.state = ModelState(tensors[f"{_PREFIX}params"], tensors[f"{_PREFIX}buffers"])
        self._rounds = int(tensors[f"{_PREFIX}rounds"])
