"""The largest few entries, always as many."""

from __future__ import annotations

from typing import Annotated

import msgspec
from torch import Tensor

from potluck.model.codecs.memory import Memory
from potluck.model.codecs.selection import largest
from potluck.model.codecs.sparse import Ratio, Sparse

__all__ = ["TopK"]


class TopK(Sparse, frozen=True, kw_only=True, tag="top-k"):
    """The share `ratio` of the entries.

    With `momentum` each device keeps the momentum of its own gradients (Lin et al. 2018, Deep gradient compression);
    the coordinator then steps without.
    """

    ratio: Ratio = 0.01
    momentum: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and not self.error_feedback:
            raise ValueError("momentum needs error_feedback = true, which keeps what it adds up to")

    def begin(self) -> Memory | None:
        return super().begin() if self.error_feedback else None

    def choose(self, strengths: Tensor, memory: Memory | None, start: int) -> Tensor | None:
        return largest(strengths, self.count(self.ratio, len(strengths)))

    @property
    def usual(self) -> float:
        return self.ratio

    @property
    def carried_momentum(self) -> float:
        return self.momentum
