"""Codecs that send only the largest entries: a fixed fraction, all or few as ScaDLES decides, or as few as suffice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec
from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.largest_entries import largest_indices
from potluck.model.codecs.sparse_codec import Fraction, Ratio, SparseCodec
from potluck.model.codecs.value_coding import ValueFormat
from potluck.settings import doc

if TYPE_CHECKING:
    from potluck.model.model_state import WeightLayout

__all__ = ["AdaptiveCodec", "GradedCodec", "TopKCodec", "squared_norm"]

_SERIAL = 1 << 15  # torch sums this many values in one thread, so the result does not depend on the threads


class TopKCodec(SparseCodec, frozen=True, kw_only=True, tag="top-k"):
    """A fixed fraction of the entries, the largest."""

    ratio: Annotated[Ratio, doc("Fraction of the entries to send.")] = 0.01

    def new_state(self, layout: WeightLayout | None = None) -> CodecState | None:
        return super().new_state(layout) if self.error_feedback or self.warmup else None

    def choose_indices(self, magnitudes: Tensor, state: CodecState | None, start: int) -> Tensor | None:
        return largest_indices(magnitudes, self.entry_count(self.ratio, len(magnitudes)))

    @property
    def expected_ratio(self) -> float:
        return self.ratio


class AdaptiveCodec(SparseCodec, frozen=True, kw_only=True, tag="adaptive"):
    """The largest entries while they hold most of the gradient's energy, else all of them (ScaDLES).

    With g the vector and c its top-k, c is sent if the running average of |‖g‖² − ‖c‖²| / ‖g‖² is at most delta,
    else g. Tyagi and Swany 2022, arXiv:2301.08897.
    """

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


class GradedCodec(SparseCodec, frozen=True, kw_only=True, tag="graded"):
    """As few of the largest entries as hold enough of the gradient's energy (after GraVAC).

    GraVAC (Tyagi and Swany 2023, arXiv:2305.12201) adjusts the ratio from step to step; this codec gives each vector
    the smallest sufficient ratio, since the energy of all ratios is computed at once.
    """

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

    @property
    def final_ratio(self) -> float:
        return self.ratios[0]


def squared_norm(vector: Tensor) -> float:
    """The sum of squares, in double precision."""
    blocks = (vector[start : start + _SERIAL] for start in range(0, len(vector), _SERIAL))
    return math.fsum(float(block.double().square().sum()) for block in blocks)
