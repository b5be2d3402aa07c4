"""Sends every value as it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from potluck.model.codecs.array_checks import FLOATS, array_refusal, count_refusal
from potluck.model.codecs.codec_interface import WHOLE_VECTOR, Codec
from potluck.model.codecs.codec_state import CodecState
from potluck.payload import Payload

__all__ = ["DenseCodec", "as_tensor"]


class DenseCodec(Codec, frozen=True, kw_only=True, tag="dense"):
    """Every value as it is."""

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        array = vector.detach().numpy()
        return Payload(array.nbytes, (array,))

    def decode(self, payload: Payload, size: int) -> Tensor:
        return as_tensor(payload.arrays[0])

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        return size * itemsize

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        return count_refusal(payload.arrays, 1) or array_refusal(payload.arrays[0], "values", FLOATS, size)


def as_tensor(array: Any) -> Tensor:
    """The same memory as a tensor; a read-only array is copied, since torch would allow writes to it."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
