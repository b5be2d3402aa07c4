"""Sends every value in a byte, as a multiple of its block's scale."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from potluck import seeds
from potluck.model.codecs.array_checks import array_refusal, count_refusal
from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.model.codecs.dense_codec import as_tensor
from potluck.payload import Payload
from potluck.settings import doc

__all__ = ["Int8Codec"]

_STEPS = 127


class Int8Codec(Codec, frozen=True, kw_only=True, tag="int8"):
    """One byte per entry, with one scale per block."""

    block: Annotated[int, msgspec.Meta(ge=1), doc("Entries per block.")] = 256
    rounding: Annotated[
        Literal["nearest", "stochastic"], doc("Round to the nearest step, or at random so that the mean is right.")
    ] = "nearest"

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        blocks = self._as_blocks(vector.detach().to(torch.float32))
        scales = blocks.abs().amax(1) / _STEPS if len(blocks) else torch.zeros(0)
        steps = blocks / torch.where(scales > 0, scales, 1.0)[:, None]
        steps = steps.round() if self.rounding == "nearest" else (steps + _rounding_noise(vector, steps)).floor()
        codes = steps.nan_to_num_(0.0).clamp_(-_STEPS, _STEPS).to(torch.int8).reshape(-1)[: len(vector)]
        arrays = (codes.numpy(), scales.numpy())
        return Payload(sum(array.nbytes for array in arrays), arrays)

    def decode(self, payload: Payload, size: int) -> Tensor:
        codes, scales = map(as_tensor, payload.arrays)
        return (self._as_blocks(codes.to(torch.float32)) * scales[:, None]).reshape(-1)[:size]

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return size + 4 * self._block_count(size)

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        if why := count_refusal(payload.arrays, 2):
            return why
        codes, scales = payload.arrays
        return (
            array_refusal(codes, "codes", (np.int8,), size)
            or array_refusal(scales, "scales", (np.float32,), self._block_count(size))
            or _scale_refusal(scales)
        )

    def _block_count(self, size: int) -> int:
        return -(-size // self.block)

    def _as_blocks(self, vector: Tensor) -> Tensor:
        """A row for each block, the last one padded with zeros."""
        count = self._block_count(len(vector))
        missing = count * self.block - len(vector)
        return torch.nn.functional.pad(vector, (0, missing)).view(count, self.block)


def _scale_refusal(scales: Any) -> str | None:
    """Why these scales would decode finite codes to infinite values; None if they do not."""
    if scales.size and float(np.abs(scales).max()) > float(np.finfo(np.float32).max) / 128:
        return "its scales are too large"
    return None


def _rounding_noise(vector: Tensor, like: Tensor) -> Tensor:
    """Random values in [0, 1) that depend only on the vector's bits, so they are repeatable and differ by device."""
    bits = vector.detach().to(torch.float32).contiguous().view(torch.int32)
    rng = seeds.child_generator(int(bits.sum(dtype=torch.int64)), "rounding", len(vector))
    return torch.from_numpy(rng.random(like.numel(), dtype=np.float32)).view(like.shape)
