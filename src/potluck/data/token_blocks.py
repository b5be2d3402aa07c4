"""Samples cut from one array of tokens: an input of `block` tokens and, as its target, the same moved on by one.

    tokens   t h e _ c a t _ s a t
    input    t h e _                 target  h e _ c
    input            c a t _         target          a t _ s

Only the tokens and the offset of each block are stored; blocks that overlap cost no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from potluck.data.content_digest import digest_tensors
from potluck.data.samples import Indices
from potluck.data.text_tokenizers import Tokens
from potluck.errors import DataError

__all__ = ["TextRange", "TokenBlocks", "cut_blocks"]


@dataclass(frozen=True)
class TextRange:
    """A range of tokens that belong together: no block crosses its ends."""

    first: int
    count: int
    owner: int = 0


@dataclass(frozen=True, eq=False)
class TokenBlocks:
    """The training or the test samples of a text; each is `block` tokens and the `block` tokens after the first."""

    tokens: Tokens
    offsets: Indices
    """Where each block begins in `tokens`."""
    block: int
    owner: npt.NDArray[np.int64] | None = None

    needs_rng = False
    has_labels = False
    is_stream = False
    dtype = torch.float32  # of floating-point tensors, of which there are none

    def __post_init__(self) -> None:
        if len(self.offsets) and int(self.offsets.max()) + self.block >= len(self.tokens):
            raise DataError(f"a block of {self.block} tokens and one more ends after the text's last token")
        if self.owner is not None and len(self.owner) != len(self.offsets):
            raise DataError(f"{len(self.offsets)} blocks but {len(self.owner)} owners; each block needs one")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        raise DataError("the targets are the next tokens of a text, not labels; split it by iid, owner or power-law")

    def batch(self, indices: npt.NDArray[np.integer], rng: np.random.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return int64 inputs and targets, each (len(indices), block)."""
        tokens = self.read_blocks(indices)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def stored_batch(self, indices: npt.NDArray[np.integer]) -> tuple[Tensor, Tensor]:
        return self.batch(indices)

    def with_dtype(self, dtype: torch.dtype) -> TokenBlocks:
        """The same: tokens are integers."""
        return self

    def content_digest(self) -> str | None:
        known = [] if self.owner is None else [self.owner]
        return digest_tensors([torch.from_numpy(values) for values in (self.tokens, self.offsets, *known)])

    def read_blocks(self, indices: npt.NDArray[np.integer]) -> Tensor:
        """Inputs and their last target, int64 (len(indices), block + 1)."""
        return torch.from_numpy(self._every_block[self.offsets[indices]].astype(np.int64))

    @cached_property
    def _every_block(self) -> Tokens:
        """All blocks of the text as a view, one for each offset."""
        return sliding_window_view(self.tokens, self.block + 1)


def cut_blocks(tokens: Tokens, ranges: Sequence[TextRange], block: int, stride: int, *, owned: bool) -> TokenBlocks:
    """The blocks of each range, `stride` tokens apart; tokens that fill no whole block are left out."""
    offsets = [each.first + np.arange(0, each.count - block, stride, dtype=np.int64) for each in ranges]
    owner = np.repeat(np.array([each.owner for each in ranges], np.int64), [len(own) for own in offsets])
    joined = np.concatenate(offsets) if offsets else np.zeros(0, np.int64)
    return TokenBlocks(tokens, joined, block, owner if owned else None)
