"""The leader's side of copying a run's folder: answers a standby's queries from threads of its own.

Training goes on meanwhile. A checkpoint that was announced stays readable until the standby asks for a newer one, even
if its file is deleted, so that a slow link copies a whole checkpoint in the end.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zenoh
from zenoh.handlers import Callback

from potluck.checkpoint_files import CHECKPOINT_FOLDER, checkpoint_name, newest_version, version_of
from potluck.worlds.live import key_expressions
from potluck.worlds.live.replica_messages import (
    CHUNK_BYTES,
    JOURNAL,
    Answer,
    ChunkRequest,
    DeposeNotice,
    FileChunk,
    FileEntry,
    FolderManifest,
    FollowRefused,
    FollowRequest,
    LeaderOptions,
    PrefixDigest,
    PrefixRequest,
    Request,
    decode_replica_request,
)
from potluck.worlds.live.wire_format import WireError

__all__ = ["ReplicaServer", "ReplicaSource"]

_HOLD_S = 0.5  # how long a standby that has everything waits for an answer
_THREADS = 6
_MAX_WAITING = 32  # requests; further ones are dropped, and asked again
_MAX_PINNED = 12  # files that are kept readable
_SMALL_FILES = ("join.secret", "admitted.json", "best.safetensors")

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class ReplicaSource:
    """The run that is copied."""

    folder: Path
    run: str
    term: int
    digest: str  # of the job
    check_token: Callable[[str], str | None]  # why a token is not good for a standby; None if it is
    on_follow: Callable[[FollowRequest], None]  # a standby says what it has
    on_depose: Callable[[int], None] = lambda term: None
    coordinators: Callable[[], list[str]] = list
    session: str = field(default_factory=lambda: secrets.token_hex(8))


class ReplicaServer:
    """Serves one run's folder while its leader runs."""

    def __init__(self, source: ReplicaSource) -> None:
        self._source = source
        self.session = source.session
        self._pool = ThreadPoolExecutor(_THREADS, "potluck-replica")
        self._room = threading.BoundedSemaphore(_MAX_WAITING)
        self._changed = threading.Condition()
        self._change_count = 0
        self._closed = False
        self._outcome = ("", "")  # status and reason, once the run is over
        self.members: Mapping[str, int] = {}
        self.options: LeaderOptions | None = None
        self._pinned: dict[tuple[str, str], int] = {}  # (name, digest) → open file
        self._digests: dict[str, tuple[tuple[int, int, int], str]] = {}  # name → what the file was, digest

    def serve_requests(self, session: zenoh.Session) -> None:
        session.declare_queryable(key_expressions.standby_key(), Callback(self._on_query, indirect=False))

    def notify_change(self) -> None:
        """A checkpoint was written; standbys that wait are told."""
        with self._changed:
            self._change_count += 1
            self._changed.notify_all()

    def end_run(self, status: str, reason: str) -> None:
        """The run is over, and its last checkpoint is written."""
        self._outcome = status, reason
        self.notify_change()

    def close(self) -> None:
        self._closed = True
        self.notify_change()
        self._pool.shutdown(wait=True, cancel_futures=True)
        with self._changed:
            for handle in self._pinned.values():
                os.close(handle)
            self._pinned.clear()

    # --- queries ---------------------------------------------------------------------------------------------------

    def _on_query(self, query: zenoh.Query) -> None:
        """Called from one of Zenoh's threads."""
        if self._room.acquire(blocking=False):
            with contextlib.suppress(RuntimeError):  # the pool is closed: the run has ended
                self._pool.submit(self._answer_query, query)

    def _answer_query(self, query: zenoh.Query) -> None:
        self._room.release()
        answer: Answer
        try:
            answer = self._answer(
                decode_replica_request(query.payload.to_bytes() if query.payload is not None else b"")
            )
        except WireError as error:
            answer = FollowRefused(reason=str(error), permanent=True)
        except OSError as error:
            answer = FollowRefused(reason=f"the leader cannot read its folder: {error}")
        try:
            query.reply(query.key_expr, msgspec.msgpack.encode(answer))
            query.drop()  # type: ignore[no-untyped-call]
        except zenoh.ZError as error:
            _log.debug("cannot answer a standby: %s", error)

    def _answer(self, request: Request) -> Answer:
        refusal = self._source.check_token(request.token)
        if refusal is not None:
            return FollowRefused(reason=refusal, permanent=True)
        match request:
            case FollowRequest():
                return self._answer_follow(request)
            case ChunkRequest():
                return self._read_chunk(request)
            case PrefixRequest(length=length):
                return PrefixDigest(digest=_prefix_digest(self._source.folder / JOURNAL, length))
            case DeposeNotice(term=term):
                self._source.on_depose(term)
                return FollowRefused(reason="noted")

    def _answer_follow(self, request: FollowRequest) -> Answer:
        source = self._source
        if request.digest != source.digest:
            return FollowRefused(
                reason=f"the leader of run {source.run} trains another job (digest {source.digest[:12]}, the standby's"
                f" is {request.digest[:12]}); start the standby with the same job file, --set and --seed",
                permanent=True,
            )
        until = time.monotonic() + (_HOLD_S if request.session == source.session else 0.0)
        source.on_follow(request)
        with self._changed:
            seen, newest = self._change_count, newest_version(source.folder / CHECKPOINT_FOLDER)
            while newest == request.version and not (self._outcome[0] or self._closed) and time.monotonic() < until:
                self._changed.wait(max(0.0, until - time.monotonic()))
                if self._change_count != seen:
                    break
        return self._build_manifest()

    def _build_manifest(self) -> FolderManifest:
        source = self._source
        status, reason = self._outcome
        files = [entry for name in self._file_names() if (entry := self._pin_file(name)) is not None]
        versions = [version_of(Path(entry.name)) for entry in files if entry.name not in _SMALL_FILES]
        journal = source.folder / JOURNAL  # after the checkpoints: it covers them
        return FolderManifest(
            run=source.run,
            session=source.session,
            term=source.term,
            version=max(versions, default=-1),
            journal_bytes=journal.stat().st_size if journal.exists() else 0,
            files=files,
            members=dict(self.members),
            options=self.options,
            coordinators=source.coordinators(),
            ended=reason,
            status=status,
        )

    # --- files -----------------------------------------------------------------------------------------------------

    def _file_names(self) -> list[str]:
        newest = newest_version(self._source.folder / CHECKPOINT_FOLDER)
        return [*_SMALL_FILES, *([f"{CHECKPOINT_FOLDER}/{checkpoint_name(newest)}"] if newest >= 0 else [])]

    def _pin_file(self, name: str) -> FileEntry | None:
        """Open a file for later requests; None if it does not exist."""
        try:
            handle = os.open(self._source.folder / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        state = os.fstat(handle)
        identity = state.st_ino, state.st_size, state.st_mtime_ns
        with self._changed:
            known = self._digests.get(name)
        digest = known[1] if known is not None and known[0] == identity else _file_digest(handle)
        with self._changed:
            self._digests[name] = identity, digest
            if (name, digest) in self._pinned or self._closed:
                os.close(handle)
            else:
                self._pinned[name, digest] = handle
            while len(self._pinned) > _MAX_PINNED:
                os.close(self._pinned.pop(next(iter(self._pinned))))
            for old in [old for old in self._digests if old.startswith(f"{CHECKPOINT_FOLDER}/") and old != name][:-4]:
                del self._digests[old]
        return FileEntry(name, state.st_size, digest)

    def _read_chunk(self, request: ChunkRequest) -> Answer:
        if request.name == JOURNAL:
            with (self._source.folder / JOURNAL).open("rb") as file:
                file.seek(request.offset)
                data = file.read(CHUNK_BYTES)
        else:
            with self._changed:
                handle = self._pinned.get((request.name, request.digest))
                if handle is None:
                    return FollowRefused(reason=f"{request.name} has been replaced by a newer one")
                data = os.pread(handle, CHUNK_BYTES, request.offset)
        return FileChunk(data=data, crc=zlib.crc32(data))


def _file_digest(handle: int) -> str:
    digest, offset = hashlib.sha256(), 0
    while data := os.pread(handle, CHUNK_BYTES, offset):
        digest.update(data)
        offset += len(data)
    return digest.hexdigest()


def _prefix_digest(path: Path, length: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (data := file.read(min(length, CHUNK_BYTES))):
            digest.update(data)
            length -= len(data)
    return digest.hexdigest() if length == 0 else ""
