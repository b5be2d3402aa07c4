"""The interface of a codec.

A codec is settings and arithmetic; what a device must remember from one round to the next lies in its Memory. A
vector may be sent in segments: each is encoded alone, `at` says where in the whole vector it lies.
"""

from __future__ import annotations

from torch import Tensor

from potluck.model.codecs.codec_state import CodecState
from potluck.payload import Payload
from potluck.settings import Part

__all__ = ["WHOLE", "Codec"]

WHOLE = slice(None)


class Codec(Part, frozen=True, kw_only=True):
    """Encodes a vector as a payload and decodes it."""

    def new_state(self) -> CodecState | None:
        """What a new device remembers; None where there is nothing to remember."""
        return None

    def encode(self, vector: Tensor, memory: CodecState | None = None, at: slice = WHOLE) -> Payload:
        """Called exactly once for each segment and round: whoever has to send again sends the same payload."""
        raise NotImplementedError

    def decode(self, payload: Payload, size: int) -> Tensor:
        """The `size` numbers of a payload that was not refused."""
        raise NotImplementedError

    def retract(self, payload: Payload, memory: CodecState | None, at: slice) -> None:
        """The payload of this segment was sent in vain; keep what can be kept of it for the next time."""

    def encoded_bytes(self, size: int, itemsize: int) -> int:
        """What `size` numbers will take on the wire, as far as that can be told without looking at them."""
        raise NotImplementedError

    def payload_refusal(self, payload: Payload, size: int) -> str | None:
        """Why a peer's payload cannot stand for `size` numbers; never raises, whatever is in it."""
        raise NotImplementedError
