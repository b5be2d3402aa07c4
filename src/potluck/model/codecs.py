"""What goes on the wire for a slice of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from potluck.payload import Payload
from potluck.settings import Part

__all__ = ["Codec", "Dense"]


class Codec(Part, frozen=True, kw_only=True):
    """Turns a vector into a payload and back."""

    def encode(self, vector: Tensor) -> Payload:
        raise NotImplementedError

    def decode(self, payload: Payload, size: int) -> Tensor:
        raise NotImplementedError

    def nbytes(self, size: int, itemsize: int) -> int:
        """What `size` numbers take on the wire, where that can be told without looking at them."""
        raise NotImplementedError


class Dense(Codec, frozen=True, kw_only=True, tag="dense"):
    """Every number as it is."""

    def encode(self, vector: Tensor) -> Payload:
        array = vector.detach().numpy()
        return Payload(array.nbytes, (array,))

    def decode(self, payload: Payload, size: int) -> Tensor:
        return torch.from_numpy(payload.arrays[0])

    def nbytes(self, size: int, itemsize: int) -> int:
        return size * itemsize
