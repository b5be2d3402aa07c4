"""Sends every value, as it is or in half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs.array_checks import FLOATS, array_refusal, count_refusal, vector_norm
from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.payload import Payload

__all__ = ["DenseCodec", "Fp16Codec", "as_tensor", "to_half"]

_LARGEST = torch.finfo(torch.float16).max


class DenseCodec(Codec, frozen=True, kw_only=True, tag="dense"):
    """Every value as it is."""

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        array = vector.detach().numpy()
        return Payload(array.nbytes, (array,))

    def decode(self, payload: Payload, size: int) -> Tensor:
        return as_tensor(payload.arrays[0])

    def norm(self, payload: Payload, size: int) -> float:
        return vector_norm(payload.arrays[0])

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return size * itemsize

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        return count_refusal(payload.arrays, 1) or array_refusal(payload.arrays[0], "values", FLOATS, size)


def as_tensor(array: Any) -> Tensor:
    """The same memory as a tensor; a read-only array is copied, since torch would allow writes to it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class Fp16Codec(Codec, frozen=True, kw_only=True, tag="fp16"):
    """Every value in half precision."""

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        array = to_half(vector.detach()).numpy()
        return Payload(array.nbytes, (array,))

    def decode(self, payload: Payload, size: int) -> Tensor:
        return as_tensor(payload.arrays[0]).to(torch.float32)

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return 2 * size

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        return count_refusal(payload.arrays, 1) or array_refusal(payload.arrays[0], "values", (np.float16,), size)


def to_half(vector: Tensor) -> Tensor:
    """The nearest half-precision values; large ones are clipped, NaN and infinity remain and are refused."""
    half = vector.to(torch.float16)
    over = half.isinf() & vector.isfinite()
    return torch.where(over, half.sign() * _LARGEST, half) if bool(over.any()) else half
