"""What is said at the door: a device's Hello, and the coordinator's Welcome or Refusal.

All of it is data: the job travels as TOML text, never as code. What comes in is bounded and typed.
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

PROTOCOL = 4  # raised with every change to what is said on the wire

_HELLO_BYTES = 16 << 10
_WELCOME_BYTES = 4 << 20

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="Hello"):
    """A device asks to be let in."""

    name: Name  # what it wants to be called; the coordinator may call it otherwise
    token: Text = ""
    protocol: int = PROTOCOL
    digest: Text = ""  # of the job it already has, if it has one
    threads: Count = 1
    memory_bytes: Count = 0
    body: Name = ""  # the same for all lives of one process; filled in by `visit`


class JoinAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="Welcome"):
    """Come in: all that a device needs to know to take part."""

    run: str
    era: str
    name: str
    incarnation: int
    job: str  # the resolved job as TOML
    digest: str
    model: str  # a digest of the model that the coordinator builds of the job
    seed: int
    lease: float
    limit_bytes: int
    shaped: bool = False  # the fleet's links and speeds are acted out
    direct: bool = False  # devices speak to each other
    bears: dict[str, str] = {}  # whom they may then expect: device → common name of its certificate, if there are any
    zero: float | None = None  # when the run began, by the coordinator's monotonic clock; None if it has not yet


class JoinRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refusal"):
    """Stay out, and why; `retry_s` says when to ask again, if that may help."""

    reason: str
    retry_s: float | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator tells every device about its run."""

    run: str  # the run's name
    job: str  # the resolved job as TOML
    digest: str = ""
    model: str = ""
    lease: float = 5.0  # how long a device may be silent
    limit_bytes: int = 1 << 30  # no message is longer; about twice the model
    bears: dict[str, str] = {}  # device → common name of its certificate, if there are any


def encode_handshake(said: JoinRequest | JoinAccepted | JoinRefused) -> bytes:
    return msgspec.msgpack.encode(said)


def decode_join_request(data: bytes) -> JoinRequest:
    found: JoinRequest = _decode_bounded(data, JoinRequest, _HELLO_BYTES)
    return found


def decode_join_answer(data: bytes) -> JoinAccepted | JoinRefused:
    found: JoinAccepted | JoinRefused = _decode_bounded(data, JoinAccepted | JoinRefused, _WELCOME_BYTES)
    return found


def _decode_bounded(data: bytes, wanted: Any, limit_bytes: int) -> Any:
    if len(data) > limit_bytes:
        raise WireError(f"a greeting of {len(data)} bytes is longer than {limit_bytes}")
    try:
        return msgspec.msgpack.decode(data, type=wanted)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise WireError(f"not a greeting: {error}") from None
