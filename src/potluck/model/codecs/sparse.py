"""Some entries of a vector and where they belong; what the sparse codecs have in common.

    vector + what was left out before ──▶ choose ──▶ (values, places) on the wire
                         ▲                   └─────▶ the rest
                         └──── next round ──────────────┘

On the wire a vector is two arrays, values and places, or one array if it is sent whole.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from potluck.model.codecs import places as placing
from potluck.model.codecs import values as valuing
from potluck.model.codecs.checks import array_refusal, count_refusal
from potluck.model.codecs.codec import WHOLE, Codec
from potluck.model.codecs.dense import Dense
from potluck.model.codecs.memory import Carried, Memory
from potluck.payload import Payload

__all__ = ["Ratio", "Share", "Sparse"]

Ratio = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class Sparse(Codec, frozen=True, kw_only=True):
    """Sends some entries; with error feedback the others are added to the next vector, so that nothing is lost."""

    error_feedback: bool = True
    values: valuing.Form = "f32"

    def __post_init__(self) -> None:
        if self.values == "sign" and not self.error_feedback:
            raise ValueError('values = "sign" needs error_feedback = true, which makes up for what signs leave out')

    def choose(self, strengths: Tensor, memory: Memory | None, start: int) -> Tensor | None:
        """The indices to send, ascending, by the sizes of all entries; None: send everything."""
        raise NotImplementedError

    @property
    def usual(self) -> float:
        """The share of the entries that planning reckons with."""
        raise NotImplementedError

    @property
    def carried_momentum(self) -> float:
        return 0.0

    def begin(self) -> Memory | None:
        return Memory()

    def encode(self, vector: Tensor, memory: Memory | None = None, at: slice = WHOLE) -> Payload:
        vector = vector.detach()
        carried = self._carry(vector, memory, at)
        strengths = carried.total.abs()
        if len(vector) and not bool(strengths.max().isfinite()):
            return Dense().encode(vector)  # not ours to judge: if it is the vector that is bad, it is refused
        places = self.choose(strengths, memory, at.start or 0)
        if places is not None and self._bytes(len(places), len(vector)) >= self._whole_bytes(len(vector)):
            places = None
        packed = self._packed(carried.total, places)
        self._remember(memory, carried, at, places, valuing.unpack(packed))
        return _payload(packed, places, len(vector))

    def decode(self, payload: Payload, size: int) -> Tensor:
        values = valuing.unpack(payload.arrays[0])
        if len(payload.arrays) == 1:
            return values
        vector = torch.zeros(size, dtype=values.dtype)
        vector[torch.from_numpy(placing.unpack(payload.arrays[1], len(values), size))] = values
        return vector

    def retract(self, payload: Payload, memory: Memory | None, at: slice) -> None:
        if memory is not None and self.error_feedback:
            sent = self.decode(payload, at.stop - at.start)
            if bool(sent.isfinite().all()):
                memory.put_back(sent, at)

    def nbytes(self, size: int, itemsize: int) -> int:
        return min(self._bytes(self.count(self.usual, size), size), self._whole_bytes(size))

    def refusal(self, payload: Payload, size: int) -> str | None:
        if why := count_refusal(payload.arrays, 1, 2):
            return why
        values, *places = payload.arrays
        return valuing.refusal(values) or _refusal(valuing.count_of(values), places, size)

    @staticmethod
    def count(ratio: float, size: int) -> int:
        """How many entries a ratio stands for: at least one, if there are any."""
        return min(size, max(1, round(ratio * size)))

    def _carry(self, vector: Tensor, memory: Memory | None, at: slice) -> Carried:
        if memory is None or not self.error_feedback:
            return Carried(vector)
        return memory.carry(vector, at, self.carried_momentum)

    def _remember(
        self, memory: Memory | None, carried: Carried, at: slice, places: Tensor | None, sent: Tensor
    ) -> None:
        if memory is None:
            return
        memory.count(compressed=places is not None)
        if self.error_feedback:
            memory.keep(carried, at, places, sent)

    def _packed(self, total: Tensor, places: Tensor | None) -> Any:
        return valuing.pack(total, self._whole_form) if places is None else valuing.pack(total[places], self.values)

    @property
    def _whole_form(self) -> valuing.Form:
        """Signs stand for entries that are about the same size, and all of them are not."""
        return "f32" if self.values == "sign" else self.values

    def _bytes(self, count: int, size: int) -> int:
        return valuing.packed_bytes(count, self.values) + placing.packed_bytes(count, size)

    def _whole_bytes(self, size: int) -> int:
        return valuing.packed_bytes(size, self._whole_form)


def _payload(packed: Any, places: Tensor | None, size: int) -> Payload:
    arrays = (packed,) if places is None else (packed, placing.pack(places.numpy(), size))
    return Payload(sum(array.nbytes for array in arrays), arrays)


def _refusal(count: int, places: list[Any], size: int) -> str | None:
    """Why so many numbers do not belong at these places, or are not all of them where no places are given."""
    if not places:
        return None if count == size else f"it has {count} values, not {size}"
    if count > size:
        return f"it has {count} values for {size} places"
    packed = places[0]
    return array_refusal(packed, "places", (np.uint8,), placing.packed_bytes(count, size)) or placing.refusal(
        packed, count, size
    )
