"""As few of the largest entries as hold enough of the gradient.

After GraVAC (Tyagi and Swany 2023, arXiv:2305.12201), which moves along a ladder of ratios from step to step; here
each vector gets the first rung that will do, since the energy of every rung is known at once.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.sparse_codec import Ratio, Share, SparseCodec
from potluck.model.codecs.top_k_selection import largest_indices, squared_norm
from potluck.model.codecs.value_coding import Form
from potluck.settings import doc

__all__ = ["GradedCodec"]


class GradedCodec(SparseCodec, frozen=True, kw_only=True, tag="graded"):
    """As few of the largest entries as hold enough of the gradient's energy (after GraVAC)."""

    ratios: Annotated[
        tuple[Ratio, ...], msgspec.Meta(min_length=1), doc("Fractions of the entries to choose from, rising.")
    ] = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08)
    delta: Annotated[
        Share, doc("Largest loss, as a fraction of the squared norm; if no ratio reaches it, the largest is used.")
    ] = 0.7
    values: Form = "sign"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(low >= high for low, high in zip(self.ratios, self.ratios[1:], strict=False)):
            raise ValueError("ratios must ascend, as in [0.001, 0.01, 0.1]")

    def choose_indices(self, strengths: Tensor, memory: CodecState | None, start: int) -> Tensor | None:
        places = largest_indices(strengths, self.entry_count(self.ratios[-1], len(strengths)))
        found, order = strengths[places].sort(descending=True, stable=True)
        held = found.double().square().cumsum(0)
        enough = (1 - self.delta) * squared_norm(strengths)
        for count in (self.entry_count(ratio, len(strengths)) for ratio in self.ratios):
            if count == 0 or float(held[count - 1]) >= enough:
                break
        return places[order[:count]].sort().values

    @property
    def expected_ratio(self) -> float:
        """The middle of the ladder."""
        return self.ratios[len(self.ratios) // 2]
