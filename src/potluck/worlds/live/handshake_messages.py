"""The messages of the join handshake: a device's JoinRequest, answered with JoinAccepted or JoinRefused.

They carry data only: the job travels as TOML text, never as code. Sizes are checked before decoding.

The tags on the wire ("Hello", "Welcome", "Refusal") and the fields of JoinRequest and JoinRefused stay the same in all
versions, so that a device of another version is refused with a reason instead of being misunderstood.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from potluck.loops.message_limits import Duration, ReasonText, RunTime
from potluck.text_escaping import escape_strings, escape_text
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

PROTOCOL = 7  # increment with every change of a message on the wire

_MAX_REQUEST_BYTES = 16 << 10
_MAX_ANSWER_BYTES = 4 << 20

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
JobText = Annotated[str, msgspec.Meta(max_length=_MAX_ANSWER_BYTES)]


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, tag="Hello"):
    """A device asks to join."""

    name: Name  # the name it asks for; the coordinator may assign another
    token: Text = ""
    protocol: Count = PROTOCOL
    digest: Text = ""  # of the job that it already has, if any
    threads: Count = 1
    memory_bytes: Count = 0
    body: Name = ""  # a secret of the process, the same for all its incarnations; set by `run_device`


class JoinAccepted(msgspec.Struct, frozen=True, kw_only=True, tag="Welcome"):
    """The device may join: everything it needs to take part."""

    run: Text
    era: Text
    name: Name
    incarnation: Count
    job: JobText  # the resolved job as TOML
    digest: Text
    model: Text  # digest of the model that the coordinator builds from the job
    frozen: Text = ""  # digest of the values of its frozen weights; empty if it has none
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    lease: Duration
    limit_bytes: Count
    shaped: bool = False  # the fleet's links and speeds are emulated
    direct: bool = False  # devices connect to each other
    bears: Annotated[
        dict[Name, Text], msgspec.Meta(max_length=65_536)
    ] = {}  # with `direct` and TLS: device → common name of its certificate
    zero: RunTime | None = None  # when the run started, by the coordinator's monotonic clock; None if it has not
    term: Count = 0  # of the leader; a device that has seen a higher one does not take part
    coordinators: Annotated[list[Name], msgspec.Meta(max_length=16)] = []  # where the leader and its standbys listen


class JoinRefused(msgspec.Struct, frozen=True, kw_only=True, tag="Refusal"):
    """The device may not join; `retry_s` is when to ask again, None if that would not help."""

    reason: ReasonText
    retry_s: Duration | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the coordinator tells every device about the run."""

    run: str  # the run's name
    job: str  # the resolved job as TOML
    digest: str = ""
    model: str = ""
    frozen: str = ""  # digest of the values of the model's frozen weights
    lease: float = 5.0  # how long a device may be silent before it is considered lost
    limit_bytes: int = 1 << 30  # of one message; about twice the model
    common_names: dict[str, str] = {}  # with TLS: device → common name of its certificate
    term: int = 0  # of this leader of the run


def encode_handshake(message: JoinRequest | JoinAccepted | JoinRefused) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_join_request(data: bytes) -> JoinRequest:
    decoded: JoinRequest = _decode_bounded(data, JoinRequest, _MAX_REQUEST_BYTES)
    return decoded


def decode_join_answer(data: bytes) -> JoinAccepted | JoinRefused:
    decoded: JoinAccepted | JoinRefused = _decode_bounded(data, JoinAccepted | JoinRefused, _MAX_ANSWER_BYTES)
    return escape_strings(decoded) if isinstance(decoded, JoinRefused) else decoded


def _decode_bounded(data: bytes, expected: Any, limit_bytes: int) -> Any:
    if len(data) > limit_bytes:
        raise WireError(f"a handshake message of {len(data)} bytes is over the limit of {limit_bytes}")
    try:
        return msgspec.msgpack.decode(data, type=expected)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise WireError(escape_text(f"not a handshake message: {error}", 500)) from None
