"""FedProx: local SGD with a proximal term, which pulls the weights back towards the model that the device received."""

from __future__ import annotations

from typing import Annotated

import msgspec
from torch import Tensor

from potluck.model.local_training import LocalSgd
from potluck.settings import doc

__all__ = ["Proximal"]


class Proximal(LocalSgd, frozen=True, kw_only=True, tag="proximal"):
    """Local SGD on the loss plus mu/2 · ‖w − w₀‖², with w₀ the pulled weights (FedProx)."""

    mu: Annotated[
        float, msgspec.Meta(ge=0.0), doc("Strength of the pull towards the weights that the turn started from.")
    ] = 0.01

    def correct_gradient(self, gradient: Tensor, weights: Tensor, anchor: Tensor) -> Tensor:
        return gradient.add(weights - anchor, alpha=self.mu)
