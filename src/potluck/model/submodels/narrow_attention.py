"""torch's multi-head attention with fewer heads than its width has room for."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["NarrowAttention"]


class NarrowAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` whose projections have the rows of some heads only; the outputs' width is unchanged.

    Attention weights are not returned.
    """

    is_graph_leaf: ClassVar[bool] = True  # one layer of a chain, as the attention that it replaces

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        queries, keys, values = (
            self._split_heads(functional.linear(source, weight, bias))
            for source, weight, bias in zip((query, key, value), self._weights(), self._biases(), strict=True)
        )
        attended = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=_visible_tokens(queries, keys, key_padding_mask, attn_mask),
            dropout_p=self.dropout if self.training else 0.0,
        )
        joined = attended.transpose(1, 2).flatten(2)
        return self.out_proj(joined if self.batch_first else joined.transpose(0, 1)), None

    def _weights(self) -> tuple[Tensor, ...]:
        return self.in_proj_weight.chunk(3)

    def _biases(self) -> tuple[Tensor | None, ...]:
        return (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)

    def _split_heads(self, features: Tensor) -> Tensor:
        """(batch, heads, tokens, features)"""
        batch_first = features if self.batch_first else features.transpose(0, 1)
        return torch.unflatten(batch_first, -1, (self.num_heads, self.head_dim)).transpose(1, 2)


def _visible_tokens(queries: Tensor, keys: Tensor, padding: Tensor | None, mask: Tensor | None) -> Tensor | None:
    """What is added to the scores: both masks are true, or minus infinity, where a token is not attended to."""
    masks = [_as_bias(mask, queries)] if mask is not None else []
    masks += [_as_bias(padding, keys)[:, None, None, :]] if padding is not None else []
    return sum(masks[1:], masks[0]) if masks else None


def _as_bias(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, float("-inf"))
