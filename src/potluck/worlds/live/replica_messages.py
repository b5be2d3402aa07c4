"""The messages by which a standby copies a run's folder from the leader; all of them are queries of the standby.

standby                              leader
FollowRequest ────────────────────▶  what it has; answered at once if there is more, otherwise held for a moment
              ◀────────────────────  FolderManifest: the files with their digests, the journal's length, the term
ChunkRequest  ────────────────────▶  a range of one of these files
              ◀────────────────────  FileChunk with a checksum
PrefixRequest ────────────────────▶  the digest of the beginning of the journal, to compare it with the copy's
              ◀────────────────────  PrefixDigest
DeposeNotice  ────────────────────▶  an operator promoted the standby to a higher term
any           ◀────────────────────  FollowRefused
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from potluck.worlds.live.wire_format import WireError

__all__ = [
    "CHUNK_BYTES",
    "JOURNAL",
    "ChunkRequest",
    "DeposeNotice",
    "FileChunk",
    "FileEntry",
    "FolderManifest",
    "FollowRefused",
    "FollowRequest",
    "LeaderOptions",
    "PrefixDigest",
    "PrefixRequest",
    "decode_replica_answer",
    "decode_replica_request",
    "is_replicated_file",
]

JOURNAL = "journal.jsonl"
CHUNK_BYTES = 1 << 20

_MAX_REQUEST_BYTES = 16 << 10
_MAX_ANSWER_BYTES = CHUNK_BYTES + (64 << 10)
_REPLICATED = re.compile(r"checkpoints/\d{8}\.safetensors|join\.secret|admitted\.json|best\.safetensors")

Name = Annotated[str, msgspec.Meta(max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class FollowRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A standby says what it has and asks for more."""

    coordinator: Name  # of this copy of the run
    address: Name  # where devices reach it when it leads
    digest: Text  # of the job
    token: Text = ""
    version: Annotated[int, msgspec.Meta(ge=-1)] = -1  # of its newest complete checkpoint
    journal_bytes: Size = 0
    session: Name = ""  # of the leader that it has followed so far


class ChunkRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    token: Text = ""
    name: Name
    digest: Name = ""  # which content; the journal has none, since it grows
    offset: Size


class PrefixRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    token: Text = ""
    length: Size


class DeposeNotice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    token: Text = ""
    term: Size


class FileEntry(msgspec.Struct, frozen=True):
    name: Name
    size: Size
    digest: Name  # SHA-256


class LeaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the leader serves the run, as far as a coordinator that takes over does the same."""

    wait_s: Annotated[float, msgspec.Meta(ge=0)]
    token_hours: Annotated[float, msgspec.Meta(ge=0)]
    token_each: bool
    standby_wait_s: Annotated[float, msgspec.Meta(ge=0)]


class FolderManifest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the leader has."""

    run: Name
    session: Name  # of the leader's process
    term: Size
    version: Annotated[int, msgspec.Meta(ge=-1)]  # of the newest checkpoint
    journal_bytes: Size
    files: Annotated[list[FileEntry], msgspec.Meta(max_length=16)]
    members: dict[str, int] = {}  # the devices that are connected
    options: LeaderOptions | None = None  # None: of a leader that does not say
    coordinators: Annotated[list[Name], msgspec.Meta(max_length=16)] = []  # their addresses, the leader's first
    ended: Text = ""  # why the run is over; then the files are complete
    status: Name = ""  # how it ended


class FileChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    data: bytes
    crc: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class PrefixDigest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    digest: Name


class FollowRefused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Why the leader does not answer; `permanent` if asking again would not help."""

    reason: Text
    permanent: bool = False


Request = FollowRequest | ChunkRequest | PrefixRequest | DeposeNotice
Answer = FolderManifest | FileChunk | PrefixDigest | FollowRefused


def decode_replica_request(data: bytes) -> Request:
    request: Request = _decode(data, Request, _MAX_REQUEST_BYTES)
    return request


def decode_replica_answer(data: bytes) -> Answer:
    answer: Answer = _decode(data, Answer, _MAX_ANSWER_BYTES)
    return answer


def is_replicated_file(name: str) -> bool:
    """Whether a file of this name may be copied; nothing else is read or written for a peer."""
    return _REPLICATED.fullmatch(name) is not None


def _decode(data: bytes, expected: Any, limit_bytes: int) -> Any:
    if len(data) > limit_bytes:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit_bytes}")
    try:
        return msgspec.msgpack.decode(data, type=expected)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise WireError(f"not a message about a copy of a run: {error}") from None
