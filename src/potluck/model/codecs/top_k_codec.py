"""Sends a fixed fraction of the entries, the largest ones."""

from __future__ import annotations

from typing import Annotated

import msgspec
from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.sparse_codec import Ratio, SparseCodec
from potluck.model.codecs.top_k_selection import largest_indices
from potluck.settings import doc

__all__ = ["TopKCodec"]


class TopKCodec(SparseCodec, frozen=True, kw_only=True, tag="top-k"):
    """A fixed fraction of the entries, the largest."""

    ratio: Annotated[Ratio, doc("Fraction of the entries to send.")] = 0.01
    momentum: Annotated[
        float,
        msgspec.Meta(ge=0.0, lt=1.0),
        doc("Momentum of the device's own gradients (deep gradient compression); the coordinator then uses none."),
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and not self.error_feedback:
            raise ValueError("momentum needs error_feedback = true, which keeps what was not sent")

    def new_state(self) -> CodecState | None:
        return super().new_state() if self.error_feedback else None

    def choose_indices(self, magnitudes: Tensor, state: CodecState | None, start: int) -> Tensor | None:
        return largest_indices(magnitudes, self.entry_count(self.ratio, len(magnitudes)))

    @property
    def expected_ratio(self) -> float:
        return self.ratio

    @property
    def residual_momentum(self) -> float:
        return self.momentum
