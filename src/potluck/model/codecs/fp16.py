"""Every number in half precision."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs.checks import array_refusal, count_refusal
from potluck.model.codecs.codec import WHOLE, Codec
from potluck.model.codecs.dense import tensor_of
from potluck.model.codecs.memory import Memory
from potluck.payload import Payload

__all__ = ["Fp16", "halved"]

_LARGEST = torch.finfo(torch.float16).max


class Fp16(Codec, frozen=True, kw_only=True, tag="fp16"):
    """Every number in half precision: three digits, nothing below 6e-8, nothing above 65504."""

    def encode(self, vector: Tensor, memory: Memory | None = None, at: slice = WHOLE) -> Payload:
        array = halved(vector.detach()).numpy()
        return Payload(array.nbytes, (array,))

    def decode(self, payload: Payload, size: int) -> Tensor:
        return tensor_of(payload.arrays[0]).to(torch.float32)

    def nbytes(self, size: int, itemsize: int) -> int:
        return 2 * size

    def refusal(self, payload: Payload, size: int) -> str | None:
        return count_refusal(payload.arrays, 1) or array_refusal(payload.arrays[0], "values", (np.float16,), size)


def halved(vector: Tensor) -> Tensor:
    """Nearest half-precision numbers; too large becomes the largest, but what is not finite stays so and is refused."""
    half = vector.to(torch.float16)
    over = half.isinf() & vector.isfinite()
    return torch.where(over, half.sign() * _LARGEST, half) if bool(over.any()) else half
