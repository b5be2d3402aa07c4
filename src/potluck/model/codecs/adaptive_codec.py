"""Sends the largest entries while they keep most of the gradient, else all of it: the rule of ScaDLES.

With g the vector and c its top-k, c is sent if the running average of |‖g‖² − ‖c‖²| / ‖g‖² is at most delta, else g.
Tyagi and Swany 2022, arXiv:2301.08897.
"""

from __future__ import annotations

import math
from typing import Annotated

from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.sparse_codec import Fraction, Ratio, SparseCodec
from potluck.model.codecs.top_k_selection import largest_indices, squared_norm
from potluck.settings import doc

__all__ = ["AdaptiveCodec"]


class AdaptiveCodec(SparseCodec, frozen=True, kw_only=True, tag="adaptive"):
    """The largest entries while they hold most of the gradient's energy, else all of them (ScaDLES)."""

    ratio: Annotated[Ratio, doc("Fraction of the entries to send.")] = 0.1
    delta: Annotated[
        Fraction, doc("Largest loss, as a fraction of the squared norm, with which only these are sent.")
    ] = 0.3
    smoothing: Annotated[Ratio, doc("Weight of the newest value in the running mean of that loss.")] = 0.3
    error_feedback: bool = False

    def choose_indices(self, magnitudes: Tensor, state: CodecState | None, start: int) -> Tensor | None:
        indices = largest_indices(magnitudes, self.entry_count(self.ratio, len(magnitudes)))
        lost = _lost_fraction(magnitudes, indices)
        average = lost if state is None else state.update_average(start, lost, self.smoothing)
        return indices if average <= self.delta else None

    @property
    def expected_ratio(self) -> float:
        return self.ratio


def _lost_fraction(magnitudes: Tensor, indices: Tensor) -> float:
    """The fraction of the energy outside these indices."""
    total = squared_norm(magnitudes)
    if total == 0:
        return 0.0
    return max(0.0, 1 - squared_norm(magnitudes[indices]) / total) if math.isfinite(total) else 1.0
