"""The interface of a codec.

A codec is settings and arithmetic; what a device must keep from one round to the next is in its CodecState. A
vector may be sent in segments: each is encoded alone, and `entries` is its slice of the whole vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from potluck.model.codecs.array_checks import vector_norm
from potluck.model.codecs.codec_state import CodecState
from potluck.payload import Payload
from potluck.settings import Part

if TYPE_CHECKING:
    from potluck.model.model_state import WeightLayout

__all__ = ["WHOLE_VECTOR", "Codec"]

WHOLE_VECTOR = slice(None)


class Codec(Part, frozen=True, kw_only=True):
    """Encodes a vector as a payload and decodes it."""

    def new_state(self, layout: WeightLayout | None = None) -> CodecState | None:
        """The initial state of a device that sends vectors of this layout; None if the codec keeps none."""
        return None

    def encode(self, vector: Tensor, state: CodecState | None = None, entries: slice = WHOLE_VECTOR) -> Payload:
        """Encode a segment, exactly once per round: resending uses the same payload."""
        raise NotImplementedError

    def decode(self, payload: Payload, size: int) -> Tensor:
        """The `size` values of a payload that was not refused."""
        raise NotImplementedError

    def norm(self, payload: Payload, size: int) -> float:
        """The Euclidean norm of the values of a payload that was not refused; override it if decoding is not needed."""
        return vector_norm(self.decode(payload, size).numpy())

    def retract(self, payload: Payload, state: CodecState | None, entries: slice) -> None:
        """Put back what can be kept of a segment that was sent in vain."""

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        """The expected payload bytes of `size` values, without knowing them."""
        raise NotImplementedError

    def segment_bytes(self, layout: WeightLayout, first: int, last: int) -> int:
        """The expected payload bytes of the parameters of some layers; override it where their shapes matter."""
        params, _ = layout.layer_slices(first, last)
        return self.encoded_bytes(params.stop - params.start, layout.itemsize)

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        """Why a peer's payload does not encode `size` values, None if it does; never raises, whatever it contains."""
        raise NotImplementedError
