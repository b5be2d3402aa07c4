"""Bytes ↔ frames: what is on the wire, decoded into types that we know and bounded before anything is allocated.

A frame says which life of the sender speaks, which life of the receiver it is for, and one message of a loop or one
note of the transport. A message with a payload goes as an Offer: the same, with the shapes of the arrays, whose bytes
follow in chunks. Nothing that a peer sends raises anything but WireError.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from potluck.errors import PotluckError
from potluck.loops import messages
from potluck.loops.messages import Bulky, Message
from potluck.payload import Payload
from potluck.worlds.live import control_messages
from potluck.worlds.live.chunk_layout import DTYPES, ArraySpec, array_specs
from potluck.worlds.live.control_messages import ControlMessage

__all__ = [
    "ASK",
    "HEADER_LIMIT",
    "ChunkHeader",
    "ControlFrame",
    "TransferOffer",
    "WireError",
    "allocate_arrays",
    "announced_bytes",
    "arrays_to_send",
    "assemble_message",
    "check_offer",
    "decode_chunk",
    "decode_frame",
    "decode_offer",
    "encode_chunk",
    "encode_frame",
    "encode_offer",
    "register_messages",
]  # fmt: skip

HEADER_LIMIT = 64 << 10

Life = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
ChunkBytes = Annotated[int, msgspec.Meta(ge=1 << 10, le=16 << 20)]


ASK = 2**32 - 1  # the place of a chunk that is a question: what do you have?


class WireError(PotluckError):
    """What a peer sent is not what it may send; the message says why."""


class ControlFrame(msgspec.Struct, frozen=True, array_like=True):
    """A small message, and between which lives."""

    life: Life
    to_life: Life  # 0: whichever there is
    body: Any


class TransferOffer(msgspec.Struct, frozen=True, array_like=True):
    """A message whose payload follows in chunks; without specs the payload is only so many bytes."""

    life: Life
    to_life: Life
    number: Number
    chunk_bytes: ChunkBytes
    specs: Annotated[tuple[ArraySpec, ...], msgspec.Meta(max_length=1024)]
    body: Any


class ChunkHeader(NamedTuple):
    """What goes with a chunk's bytes; `begun` and `taken` are when a shaped link took its first and last byte."""

    incarnation: int
    number: int
    chunk_index: int
    checksum: int
    started_at: float = 0.0
    finished_at: float = 0.0


# --- the messages that we know --------------------------------------------------------------------------------------

_SMALL: list[Any] = [
    *(getattr(control_messages, name) for name in control_messages.__all__ if name != "Note"),
    messages.Invite, messages.Pull, messages.Accept, messages.Release, messages.Released, messages.Stop,
]  # fmt: skip
_BULKY: list[Any] = [messages.Segment, messages.Push]
_DECODERS: dict[type[ControlFrame] | type[TransferOffer], msgspec.msgpack.Decoder[Any]] = {}
_ENCODE = msgspec.msgpack.Encoder().encode
_CHUNK = struct.Struct("<IQIQdd")


def register_messages(*kinds: type[Message]) -> None:
    """Let messages of these kinds in too; those with a payload are subclasses of Bulky. Tags must differ."""
    for kind in kinds:
        known = _BULKY if issubclass(kind, Bulky) else _SMALL
        if kind not in known:
            known.append(kind)
    _DECODERS.clear()


def _decoder_for(frame: type[ControlFrame] | type[TransferOffer]) -> msgspec.msgpack.Decoder[Any]:
    if frame not in _DECODERS:
        body = reduce(or_, _SMALL if frame is ControlFrame else _BULKY)
        fields = [(field.name, field.type) for field in msgspec.structs.fields(frame)[:-1]]
        typed = msgspec.defstruct(frame.__name__, [*fields, ("body", body)], frozen=True, array_like=True)
        _DECODERS[frame] = msgspec.msgpack.Decoder(typed)
    return _DECODERS[frame]


def _decode_header(data: bytes, frame: type[ControlFrame] | type[TransferOffer]) -> Any:
    if len(data) > HEADER_LIMIT:
        raise WireError(f"a header of {len(data)} bytes is longer than {HEADER_LIMIT}")
    try:
        return _decoder_for(frame).decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise WireError(f"not a frame: {error}") from None


# --- small ones -----------------------------------------------------------------------------------------------------


def encode_frame(life: int, to_life: int, body: Message | ControlMessage) -> bytes:
    data = _ENCODE(ControlFrame(life, to_life, body))
    assert len(data) <= HEADER_LIMIT, f"{type(body).__name__} of {len(data)} bytes is too long for a frame"
    return data


def decode_frame(data: bytes) -> ControlFrame:
    found = _decode_header(data, ControlFrame)
    return ControlFrame(found.life, found.to_life, found.body)


# --- long ones ------------------------------------------------------------------------------------------------------


def encode_offer(
    life: int, to_life: int, number: int, message: Bulky, arrays: Sequence[npt.NDArray[Any]], chunk_bytes: int
) -> bytes:
    """The header of a long message; `arrays` are what its payload holds."""
    bare = msgspec.structs.replace(message, payload=Payload(message.payload.nbytes))
    specs = array_specs(arrays) if message.payload.arrays else ()
    data = _ENCODE(TransferOffer(life, to_life, number, chunk_bytes, specs, bare))
    assert len(data) <= HEADER_LIMIT, f"{type(message).__name__} has a header of {len(data)} bytes"
    return data


def decode_offer(data: bytes, limit_bytes: int) -> TransferOffer:
    found = _decode_header(data, TransferOffer)
    offer = TransferOffer(found.life, found.to_life, found.number, found.chunk_bytes, found.specs, found.body)
    check_offer(offer, limit_bytes)
    return offer


def check_offer(offer: TransferOffer, limit_bytes: int) -> None:
    """Refuse what does not add up, before a byte is allocated."""
    payload = offer.body.payload
    if payload.arrays:
        raise WireError("numbers do not travel in a header")
    if not 0 <= payload.nbytes <= limit_bytes:
        raise WireError(f"a payload of {payload.nbytes} bytes is not between 0 and {limit_bytes}")
    for spec in offer.specs:
        if spec.dtype not in DTYPES:
            raise WireError(
                f"numbers of type {spec.dtype[:16]!r} are not taken; use one of {', '.join(sorted(DTYPES))}"
            )
    if announced_bytes(offer) > limit_bytes:
        raise WireError(f"arrays of {announced_bytes(offer)} bytes are over the limit of {limit_bytes}")


def announced_bytes(offer: TransferOffer) -> int:
    """How many bytes will follow."""
    return sum(spec.nbytes for spec in offer.specs) if offer.specs else int(offer.body.payload.nbytes)


def allocate_arrays(offer: TransferOffer) -> list[npt.NDArray[Any]]:
    """Room for what will follow; a payload that is only bytes gets room for them, and they are dropped in the end."""
    if not offer.specs:
        return [np.empty(offer.body.payload.nbytes, np.uint8)]
    return [np.empty(spec.shape, np.dtype(spec.dtype)) for spec in offer.specs]


def assemble_message(offer: TransferOffer, arrays: Sequence[npt.NDArray[Any]]) -> Bulky:
    """The message, with what came behind its header."""
    for array in arrays:
        if array.dtype == np.bool_ and array.size and int(array.view(np.uint8).max()) > 1:
            raise WireError("a truth value is neither 0 nor 1")
    payload = Payload(offer.body.payload.nbytes, tuple(arrays) if offer.specs else ())
    message: Bulky = msgspec.structs.replace(offer.body, payload=payload)
    return message


def arrays_to_send(payload: Payload) -> list[npt.NDArray[Any]]:
    """The numbers as they go on the wire: in one piece each, little end first; zeros where there are only sizes."""
    if not payload.arrays:
        return [np.zeros(payload.nbytes, np.uint8)]
    return [_to_little_endian(array) for array in payload.arrays]


def _to_little_endian(array: Any) -> npt.NDArray[Any]:
    order = array.dtype.newbyteorder("<") if sys.byteorder == "big" else array.dtype
    return np.asarray(array, dtype=order, order="C")


# --- chunks ---------------------------------------------------------------------------------------------------------


def encode_chunk(life: int, number: int, index: int, data: bytes, begun: float = 0.0, taken: float = 0.0) -> bytes:
    """What goes with a chunk's bytes."""
    return _CHUNK.pack(life, number, index, xxh3_64_intdigest(data), begun, taken)


def decode_chunk(head: bytes, data: bytes) -> ChunkHeader:
    try:
        found = ChunkHeader(*_CHUNK.unpack(head))
    except struct.error:
        raise WireError(f"the head of a chunk has {len(head)} bytes, not {_CHUNK.size}") from None
    if xxh3_64_intdigest(data) != found.checksum:
        raise WireError(f"chunk {found.chunk_index} of {found.number} is damaged")
    return found
