"""The messages of the join handshake: a device's JoinRequest, answered with JoinAccepted or JoinRefused.

They carry data only: the job travels as TOML text, never as code. Sizes are checked before decoding.

The tags on the wire ("Hello", "Welcome", "Refusal") and the fields of JoinRequest and JoinRefused stay the same in all
versions, so that a device of another version is refused with a reason instead of being misunderstood.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from potluck.worlds.live.wire_format import WireError

__all__ = [
    "PROTOCOL",
    "JoinAccepted",
    "JoinRefused",
    "JoinRequest",
    "RunInfo",
    "decode_join_answer",
    "decode_join_request",
    "encode_handshake",
]

PROTOCOL = 4  # increment with every change of a message on the wire

_MAX_REQUEST_BYTES = 16 << 10
_MAX_ANSWER_BYTES = 4 << 20

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="Hello"):
    """A device asks to join."""

    name: Name  # the name it asks for; the coordinator may assign another
    token: Text = ""
    protocol: int = PROTOCOL
    digest: Text = ""  # of the job that it already has, if any
    threads: Count = 1
    memory_bytes: Count = 0
    body: Name = ""  # a secret of the process, the same for all its incarnations; set by `run_device`


class JoinAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="Welcome"):
    """The device may join: everything it needs to take part."""

    run: str
    era: str
    name: str
    incarnation: int
    job: str  # the resolved job as TOML
    digest: str
    model: str  # digest of the model that the coordinator builds from the job
    seed: int
    lease: float
    limit_bytes: int
    shaped: bool = False  # the fleet's links and speeds are emulated
    direct: bool = False  # devices connect to each other
    bears: dict[str, str] = {}  # with `direct` and TLS: device → common name of its certificate
    zero: float | None = None  # when the run started, by the coordinator's monotonic clock; None if it has not


class JoinRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refusal"):
    """The device may not join; `retry_s` is when to ask again, None if that would not help."""

    reason: str
    retry_s: float | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator tells every device about the run."""

    run: str  # the run's name
    job: str  # the resolved job as TOML
    digest: str = ""
    model: str = ""
    lease: float = 5.0  # how long a device may be silent before it is considered lost
    limit_bytes: int = 1 << 30  # of one message; about twice the model
    common_names: dict[str, str] = {}  # with TLS: device → common name of its certificate


def encode_handshake(message: JoinRequest | JoinAccepted | JoinRefused) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_join_request(data: bytes) -> JoinRequest:
    decoded: JoinRequest = _decode_bounded(data, JoinRequest, _MAX_REQUEST_BYTES)
    return decoded


def decode_join_answer(data: bytes) -> JoinAccepted | JoinRefused:
    decoded: JoinAccepted | JoinRefused = _decode_bounded(data, JoinAccepted | JoinRefused, _MAX_ANSWER_BYTES)
    return decoded


def _decode_bounded(data: bytes, expected: Any, limit_bytes: int) -> Any:
    if len(data) > limit_bytes:
        raise WireError(f"a handshake message of {len(data)} bytes is over the limit of {limit_bytes}")
    try:
        return msgspec.msgpack.decode(data, type=expected)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise WireError(f"not a handshake message: {error}") from None
