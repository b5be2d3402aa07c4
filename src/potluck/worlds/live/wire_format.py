"""Encodes and decodes what is on the wire; sizes and types are checked before anything is allocated.

A control frame holds the incarnations of sender and receiver and one message, of a loop or of the transport. A message
with a payload is announced by an offer, which also holds the shapes of its arrays; their bytes follow in chunks.
Whatever a peer sends, decoding raises nothing but WireError, and control characters in its text come out escaped.
"""

from __future__ import annotations

import math
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
from potluck.text_escaping import escape_strings, escape_text
from potluck.worlds.live import control_messages
from potluck.worlds.live.chunk_layout import DTYPES, ArraySpec, array_specs
from potluck.worlds.live.control_messages import ControlMessage

__all__ = [
    "HEADER_LIMIT",
    "STATUS_REQUEST",
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
_MAX_ERROR_CHARS = 500

Incarnation = Annotated[int, msgspec.Meta(ge=0, le=2**31)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
ChunkBytes = Annotated[int, msgspec.Meta(ge=1 << 10, le=16 << 20)]


STATUS_REQUEST = 2**32 - 1  # chunk index that asks the receiver which chunks it has


class WireError(PotluckError):
    """A peer sent something that it may not send; the message says why."""


class ControlFrame(msgspec.Struct, frozen=True, array_like=True):
    """A small message between two incarnations."""

    incarnation: Incarnation
    to_incarnation: Incarnation  # 0: any
    message: Any


class TransferOffer(msgspec.Struct, frozen=True, array_like=True):
    """Announces a message whose payload follows in chunks; without specs the payload is a number of zero bytes."""

    incarnation: Incarnation
    to_incarnation: Incarnation
    number: Number
    chunk_bytes: ChunkBytes
    specs: Annotated[tuple[ArraySpec, ...], msgspec.Meta(max_length=1024)]
    message: Any


class ChunkHeader(NamedTuple):
    """Sent with a chunk's bytes; on a shaped link, `started_at` and `finished_at` are when it takes them."""

    incarnation: int
    number: int
    chunk_index: int
    checksum: int
    started_at: float = 0.0
    finished_at: float = 0.0


# --- known messages -------------------------------------------------------------------------------------------------

_CONTROL_TYPES: list[Any] = [
    *(getattr(control_messages, name) for name in control_messages.__all__ if name != "ControlMessage"),
    messages.Invite, messages.Pull, messages.Accept, messages.Release, messages.Released, messages.Stop,
    messages.FrozenPull, messages.Holdings, messages.Give,
]  # fmt: skip
_BULK_TYPES: list[Any] = [messages.Segment, messages.Push, messages.FrozenSegment]
_DECODERS: dict[type[ControlFrame] | type[TransferOffer], msgspec.msgpack.Decoder[Any]] = {}
_ENCODE = msgspec.msgpack.Encoder().encode
_MULTILINE = ("trace",)  # fields whose text has lines
_CHUNK = struct.Struct("<IQIQdd")


def register_messages(*types: type[Message]) -> None:
    """Accept messages of these types too; those with a payload are subclasses of Bulky. Tags must be unique."""
    for type_ in types:
        known = _BULK_TYPES if issubclass(type_, Bulky) else _CONTROL_TYPES
        if type_ not in known:
            known.append(type_)
    _DECODERS.clear()


def _decoder_for(frame: type[ControlFrame] | type[TransferOffer]) -> msgspec.msgpack.Decoder[Any]:
    if frame not in _DECODERS:
        message = reduce(or_, _CONTROL_TYPES if frame is ControlFrame else _BULK_TYPES)
        fields = [(field.name, field.type) for field in msgspec.structs.fields(frame)[:-1]]
        typed = msgspec.defstruct(frame.__name__, [*fields, ("message", message)], frozen=True, array_like=True)
        _DECODERS[frame] = msgspec.msgpack.Decoder(typed)
    return _DECODERS[frame]


def _decode_header(data: bytes, frame: type[ControlFrame] | type[TransferOffer]) -> Any:
    if len(data) > HEADER_LIMIT:
        raise WireError(f"a header of {len(data)} bytes is over the limit of {HEADER_LIMIT}")
    try:
        return escape_strings(_decoder_for(frame).decode(data), multiline=_MULTILINE)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError) as error:
        raise WireError(escape_text(f"not a frame: {error}", _MAX_ERROR_CHARS)) from None


# --- control frames -------------------------------------------------------------------------------------------------


def encode_frame(incarnation: int, to_incarnation: int, message: Message | ControlMessage) -> bytes:
    data = _ENCODE(ControlFrame(incarnation, to_incarnation, message))
    assert len(data) <= HEADER_LIMIT, f"{type(message).__name__} of {len(data)} bytes does not fit into a frame"
    return data


def decode_frame(data: bytes) -> ControlFrame:
    decoded = _decode_header(data, ControlFrame)
    return ControlFrame(decoded.incarnation, decoded.to_incarnation, decoded.message)


# --- offers ---------------------------------------------------------------------------------------------------------


def encode_offer(
    incarnation: int,
    to_incarnation: int,
    number: int,
    message: Bulky,
    arrays: Sequence[npt.NDArray[Any]],
    chunk_bytes: int,
) -> bytes:
    """The header of a message with a payload; `arrays` are the payload's."""
    bare = msgspec.structs.replace(message, payload=Payload(message.payload.nbytes))
    specs = array_specs(arrays) if message.payload.arrays else ()
    data = _ENCODE(TransferOffer(incarnation, to_incarnation, number, chunk_bytes, specs, bare))
    assert len(data) <= HEADER_LIMIT, f"{type(message).__name__} has a header of {len(data)} bytes"
    return data


def decode_offer(data: bytes, limit_bytes: int) -> TransferOffer:
    decoded = _decode_header(data, TransferOffer)
    offer = TransferOffer(
        decoded.incarnation, decoded.to_incarnation, decoded.number, decoded.chunk_bytes, decoded.specs, decoded.message
    )
    check_offer(offer, limit_bytes)
    return offer


def check_offer(offer: TransferOffer, limit_bytes: int) -> None:
    """Reject an inconsistent or too large offer before anything is allocated."""
    payload = offer.message.payload
    if payload.arrays:
        raise WireError("an offer must not contain arrays; they follow in chunks")
    if not 0 <= payload.nbytes <= limit_bytes:
        raise WireError(f"a payload of {payload.nbytes} bytes is not between 0 and {limit_bytes}")
    for spec in offer.specs:
        if spec.dtype not in DTYPES:
            raise WireError(
                f"arrays of type {spec.dtype[:16]!r} are not accepted; use one of {', '.join(sorted(DTYPES))}"
            )
    if announced_bytes(offer) > limit_bytes:
        raise WireError(f"arrays of {announced_bytes(offer)} bytes are over the limit of {limit_bytes}")
    for spec in offer.specs:
        if not spec.is_addressable:
            raise WireError(f"no array can have the shape {spec.shape}")


def announced_bytes(offer: TransferOffer) -> int:
    """How many bytes will follow in chunks."""
    return sum(spec.nbytes for spec in offer.specs) if offer.specs else int(offer.message.payload.nbytes)


def allocate_arrays(offer: TransferOffer) -> list[npt.NDArray[Any]]:
    """Empty arrays for the chunks; without specs, a buffer for the bytes, which are dropped in the end."""
    if not offer.specs:
        return [np.empty(offer.message.payload.nbytes, np.uint8)]
    return [np.empty(spec.shape, np.dtype(spec.dtype)) for spec in offer.specs]


def assemble_message(offer: TransferOffer, arrays: Sequence[npt.NDArray[Any]]) -> Bulky:
    """The message with its payload."""
    for array in arrays:
        if array.dtype == np.bool_ and array.size and int(array.view(np.uint8).max()) > 1:
            raise WireError("a boolean array has a value other than 0 and 1")
    payload = Payload(offer.message.payload.nbytes, tuple(arrays) if offer.specs else ())
    message: Bulky = msgspec.structs.replace(offer.message, payload=payload)
    return message


def arrays_to_send(payload: Payload) -> list[npt.NDArray[Any]]:
    """The arrays as they are sent: contiguous and little-endian; zeros for a payload that has only a size."""
    if not payload.arrays:
        return [np.zeros(payload.nbytes, np.uint8)]
    return [_to_little_endian(array) for array in payload.arrays]


def _to_little_endian(array: Any) -> npt.NDArray[Any]:
    order = array.dtype.newbyteorder("<") if sys.byteorder == "big" else array.dtype
    return np.asarray(array, dtype=order, order="C")


# --- chunks ---------------------------------------------------------------------------------------------------------


def encode_chunk(
    incarnation: int, number: int, index: int, data: bytes, started_at: float = 0.0, finished_at: float = 0.0
) -> bytes:
    """The header that is sent with a chunk's bytes."""
    return _CHUNK.pack(incarnation, number, index, xxh3_64_intdigest(data), started_at, finished_at)


def decode_chunk(head: bytes, data: bytes) -> ChunkHeader:
    try:
        decoded = ChunkHeader(*_CHUNK.unpack(head))
    except struct.error:
        raise WireError(f"a chunk header has {len(head)} bytes, not {_CHUNK.size}") from None
    if not (0.0 <= decoded.started_at <= decoded.finished_at < math.inf):  # false for NaN, too
        raise WireError(f"chunk {decoded.chunk_index} was sent from {decoded.started_at} to {decoded.finished_at}")
    if xxh3_64_intdigest(data) != decoded.checksum:
        raise WireError(f"chunk {decoded.chunk_index} of message {decoded.number} is corrupt")
    return decoded
