"""Transformers for text: a small GPT that predicts the next token, and an encoder that classifies a text.

Both take whole numbers (batch, tokens). Their blocks normalise before attention and before the feed-forward layers;
masks are computed from the tokens, so that no buffer has to travel.
"""

from __future__ import annotations

import math
from typing import Annotated

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from potluck.errors import ModelError
from potluck.model.zoo.builder_options import Count, Fraction
from potluck.model.zoo.network_blocks import M, Named, named_sequential, optional_dropout

__all__ = ["Gpt", "SelfAttention", "TextEncoder", "TransformerBlock", "build_gpt", "build_text_encoder"]

NO_PADDING = -1
INITIAL_DEVIATION = 0.02  # of every weight, as in GPT-2

PaddingToken = Annotated[int, msgspec.Meta(ge=NO_PADDING)]


def build_gpt(
    *,
    vocabulary: Count = 65,
    block: Count = 64,
    depth: Count = 4,
    width: Count = 128,
    heads: Count = 4,
    dropout: Fraction = 0.0,
    tie: bool = True,
) -> nn.Module:
    """GPT as in nanoGPT, by default in its configuration for CPUs; `block` is the longest text in tokens.

    With `tie`, the last layer's weight is the token embedding.
    """
    _check_heads("gpt", width, heads)
    model = Gpt(vocabulary, block, [TransformerBlock(width, heads, dropout, causal=True) for _ in range(depth)])
    model.dropout.extend(layer for _, layer in optional_dropout(dropout))
    return _init_gpt(model, tie)


def build_text_encoder(
    *,
    classes: Count,
    vocabulary: Count = 256,
    block: Count = 128,
    depth: Count = 2,
    width: Count = 128,
    heads: Count = 4,
    dropout: Fraction = 0.0,
    padding: PaddingToken = 0,
) -> nn.Module:
    """Bidirectional blocks and the mean over a text's tokens; `padding` is a token to ignore (-1: there is none)."""
    _check_heads("text-encoder", width, heads)
    if padding >= vocabulary:
        raise ModelError(
            f"model 'text-encoder', option 'padding': {padding} is not in the vocabulary of {vocabulary}; "
            "use one of its tokens, or -1 if no token is padding"
        )
    blocks = [TransformerBlock(width, heads, dropout, causal=False) for _ in range(depth)]
    model = TextEncoder(nn.Embedding(vocabulary, width), PositionEmbedding(block, width), blocks, classes, padding)
    model.dropout.extend(layer for _, layer in optional_dropout(dropout))
    return _init_weights(model)


class PositionEmbedding(nn.Module):
    """Adds a learned vector for every position."""

    def __init__(self, block: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(block, width))

    def forward(self, embedded: Tensor) -> Tensor:
        return embedded + self.weight[: embedded.shape[1]]


class SelfAttention(nn.Module):
    """Attention over several heads, whose queries, keys and values are one linear layer."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.head_width = width // heads
        self.dropout = dropout
        self.causal = causal

    def forward(self, embedded: Tensor, visible: Tensor | None = None) -> Tensor:
        """`visible` (batch, tokens) is true where a token may be attended to."""
        queries, keys, values = self.qkv(embedded).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(
            self._split_heads(queries),
            self._split_heads(keys),
            self._split_heads(values),
            attn_mask=None if visible is None else visible[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split_heads(self, features: Tensor) -> Tensor:
        return torch.unflatten(features, -1, (-1, self.head_width)).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention, then two feed-forward layers; each is added to its input."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.attention = SelfAttention(width, heads, dropout, causal=causal)
        self.dropout1 = named_sequential(optional_dropout(dropout))
        self.norm2 = nn.LayerNorm(width, bias=False)
        hidden: list[Named] = [
            ("hidden", nn.Linear(width, 4 * width, bias=False)),
            ("gelu", nn.GELU()),
            ("out", nn.Linear(4 * width, width, bias=False)),
        ]
        self.feed_forward = named_sequential([*hidden, *optional_dropout(dropout)])

    def forward(self, embedded: Tensor, visible: Tensor | None = None) -> Tensor:
        embedded = embedded + self.dropout1(self.attention(self.norm1(embedded), visible))
        return embedded + self.feed_forward(self.norm2(embedded))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Scores of the next token at every position: (batch, tokens) to (batch, tokens, vocabulary)."""

    def __init__(self, vocabulary: int, block: int, blocks: list[TransformerBlock]) -> None:
        super().__init__()
        width = blocks[0].attention.out.out_features
        self.token = nn.Embedding(vocabulary, width)
        self.position = PositionEmbedding(block, width)
        self.dropout = nn.Sequential()
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.dropout(self.position(self.token(tokens)))
        return self.head(self.norm(self.blocks(embedded)))  # type: ignore[no-any-return]


class TextEncoder(nn.Module):
    """Scores of a text's classes: (batch, tokens) to (batch, classes).

    Padding neither is attended to nor counts in the mean. The first token always does, so that a text of padding only
    has a score, too.
    """

    def __init__(
        self,
        token: nn.Embedding,
        position: PositionEmbedding,
        blocks: list[TransformerBlock],
        classes: int,
        padding: int,
    ) -> None:
        super().__init__()
        self.token = token
        self.position = position
        self.dropout = nn.Sequential()
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(token.embedding_dim, bias=False)
        self.classifier = nn.Linear(token.embedding_dim, classes)
        self.padding = padding

    def forward(self, tokens: Tensor) -> Tensor:
        counts = functional.pad(tokens[:, 1:] != self.padding, (1, 0), value=True)
        embedded = self.dropout(self.position(self.token(tokens)))
        for block in self.blocks:
            embedded = block(embedded, counts)
        weights = counts.to(embedded.dtype).unsqueeze(-1)
        mean = (self.norm(embedded) * weights).sum(1) / weights.sum(1)
        return self.classifier(mean)  # type: ignore[no-any-return]


def _check_heads(name: str, width: int, heads: int) -> None:
    if width % heads:
        raise ModelError(f"model {name!r}, option 'heads': {heads} heads cannot share a width of {width} evenly")


def _init_gpt(model: Gpt, tie: bool) -> Gpt:
    """As in GPT-2: what is added to the residual stream starts smaller, the deeper the model."""
    _init_weights(model)
    for block in model.blocks:
        assert isinstance(block, TransformerBlock)
        for added in (block.attention.out, block.feed_forward.get_submodule("out")):
            assert isinstance(added, nn.Linear)
            nn.init.normal_(added.weight, std=INITIAL_DEVIATION / math.sqrt(2 * len(model.blocks)))
    if tie:
        model.head.weight = model.token.weight
    return model


def _init_weights(model: M) -> M:
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Embedding | PositionEmbedding):
            nn.init.normal_(layer.weight, std=INITIAL_DEVIATION)
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return model
