"""Sends as few of the largest entries as keep enough of the gradient.

After GraVAC (Tyagi and Swany 2023, arXiv:2305.12201), which adjusts the ratio from step to step; here
each vector gets the smallest sufficient ratio, since the energy of all ratios is computed at once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.sparse_codec import Fraction, Ratio, SparseCodec
from potluck.model.codecs.top_k_selection import largest_indices, squared_norm
from potluck.model.codecs.value_coding import ValueFormat
from potluck.settings import doc

__all__ = ["GradedCodec"]


class GradedCodec(SparseCodec, frozen=True, kw_only=True, tag="graded"):
    """As few of the largest entries as hold enough of the gradient's energy (after GraVAC)."""

    ratios: Annotated[
        tuple[Ratio, ...], msgspec.Meta(min_length=1), doc("Fractions of the entries to choose from, rising.")
    ] = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
    delta: Annotated[
        Fraction, doc("Largest loss, as a fraction of the squared norm; if no ratio reaches it, the largest is used.")
    ] = 0.7
    values: ValueFormat = "sign"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(low >= high for low, high in zip(self.ratios, self.ratios[1:], strict=False)):
            raise ValueError("ratios must be ascending, as in [0.001, 0.01, 0.1]")

    def choose_indices(self, magnitudes: Tensor, state: CodecState | None, start: int) -> Tensor | None:
        indices = largest_indices(magnitudes, self.entry_count(self.ratios[-1], len(magnitudes)))
        largest, order = magnitudes[indices].sort(descending=True, stable=True)
        energy = largest.double().square().cumsum(0)
        enough = (1 - self.delta) * squared_norm(magnitudes)
        for count in (self.entry_count(ratio, len(magnitudes)) for ratio in self.ratios):
            if count == 0 or float(energy[count - 1]) >= enough:
                break
        return indices[order[:count]].sort().values

    @property
    def expected_ratio(self) -> float:
        """The middle one of the ratios."""
        return self.ratios[len(self.ratios) // 2]
