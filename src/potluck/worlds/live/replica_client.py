"""The standby's side of copying a run's folder: asks the leader again and again, from a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import zenoh

from potluck.errors import PotluckError, RunError, StorageError, UserError
from potluck.worlds.live import key_expressions
from potluck.worlds.live.folder_copy import CopyFrozenError, FolderCopy
from potluck.worlds.live.replica_messages import (
    Answer,
    ChunkRequest,
    DeposeNotice,
    FileChunk,
    FolderManifest,
    FollowRefused,
    FollowRequest,
    PrefixDigest,
    PrefixRequest,
    Request,
    decode_replica_answer,
)
from potluck.worlds.live.wire_format import WireError
from potluck.worlds.live.zenoh_session import Endpoint, EndpointError, open_session

__all__ = ["FollowOptions", "FollowRefusedError", "FollowedLeader", "ReplicaFollower", "depose_leader"]

_ANSWER_TIMEOUT_S = 3.0
_RETRY_S = 0.2

Kind = TypeVar("Kind", bound=msgspec.Struct)

_log = logging.getLogger("potluck")


class FollowRefusedError(UserError):
    """The leader does not let this standby follow."""


class _LeaderSilentError(Exception):
    """The leader cannot be reached, or does not answer; asked again."""


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """Whom to follow, as whom, and where the copy goes."""

    request: FollowRequest  # what does not change of it
    endpoint: Endpoint  # how to connect; the address comes from `leader_address`
    leader_address: Callable[[], str | None]
    copy: FolderCopy | None  # where there is one already
    open_copy: Callable[[FolderManifest], FolderCopy]  # otherwise called once, with the first manifest
    accept: Callable[[FolderManifest], None] = lambda manifest: None  # raises where this leader is not followed
    on_update: Callable[[FollowedLeader], None] = lambda state: None
    token: Callable[[], str] = lambda: ""


class FollowedLeader(msgspec.Struct, kw_only=True):
    """How far the copy is behind the leader, as far as the standby knows."""

    manifest: FolderManifest | None = None
    version: int = -1  # of the copy
    journal_bytes: int = 0
    heard_at: float = 0.0  # monotonic

    @property
    def lag_checkpoints(self) -> int:
        return 0 if self.manifest is None else max(0, self.manifest.version - max(self.version, 0))

    @property
    def lag_bytes(self) -> int:
        return 0 if self.manifest is None else max(0, self.manifest.journal_bytes - self.journal_bytes)


class ReplicaFollower:
    """Keeps a copy of the leader's folder until it is stopped, refused, or the run is over."""

    def __init__(self, options: FollowOptions) -> None:
        self._options = options
        self.copy = options.copy
        self.state = FollowedLeader()
        self.error: PotluckError | None = None
        self._problem = ""  # with the copy's disk
        self._stopped = threading.Event()
        self.is_over = threading.Event()  # the run has ended and the copy has all of it, or following has failed
        self._thread = threading.Thread(target=self._follow, name="potluck-follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Change nothing in the folder from now on; does not wait for the network."""
        self._stopped.set()
        if self.copy is not None:
            self.copy.freeze()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow_one_connection()
            except CopyFrozenError:
                return
            except (FollowRefusedError, StorageError) as error:
                self.error = error
                self.is_over.set()
                return
            except (_LeaderSilentError, EndpointError, RunError) as error:
                _log.debug("the leader cannot be followed now: %s", error)
            except OSError as error:
                self._warn_of(error.strerror or str(error))
            if self.is_over.is_set() or self._stopped.wait(_RETRY_S):
                return

    def _warn_of(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.warning("the copy of the run cannot be written (%s); it falls behind until it can", problem)

    def _follow_one_connection(self) -> None:
        address = self._options.leader_address()
        if address is None:
            return
        session = open_session(msgspec.structs.replace(self._options.endpoint, connect=(address,)), "client")
        try:
            while not self._stopped.is_set() and not self.is_over.is_set():
                self._follow_once(_LeaderConnection(session, self._options.token()))
                if self._options.leader_address() != address:
                    return
        finally:
            session.close()  # type: ignore[no-untyped-call]

    def _follow_once(self, leader: _LeaderConnection) -> None:
        copy = self.copy
        request = msgspec.structs.replace(
            self._options.request,
            token=leader.token,
            version=-1 if copy is None else copy.version,
            journal_bytes=0 if copy is None else copy.journal_bytes,
            session="" if copy is None else copy.session,
        )
        manifest = leader.ask(request, FolderManifest)
        self._options.accept(manifest)
        if copy is None:
            copy = self.copy = self._options.open_copy(manifest)
            if self._stopped.is_set():
                copy.freeze()
        self._report(manifest, copy)
        if copy.session != manifest.session:
            copy.begin_session(manifest, leader.prefix_digest)
        copy.update(manifest, leader.fetch_chunk)
        self._report(manifest, copy)
        self._problem = ""
        if manifest.ended:
            self.is_over.set()

    def _report(self, manifest: FolderManifest, copy: FolderCopy) -> None:
        self.state = FollowedLeader(
            manifest=manifest, version=copy.version, journal_bytes=copy.journal_bytes, heard_at=time.monotonic()
        )
        self._options.on_update(self.state)


class _LeaderConnection:
    """Requests to one leader."""

    def __init__(self, session: zenoh.Session, token: str) -> None:
        self._session = session
        self.token = token

    def ask(self, request: Request, expected: type[Kind]) -> Kind:
        """The leader's answer; raises where it refuses, is silent or answers with something else."""
        answer = self._query(msgspec.msgpack.encode(request))
        if isinstance(answer, FollowRefused):
            raise FollowRefusedError(answer.reason) if answer.permanent else RunError(answer.reason)
        if not isinstance(answer, expected):
            raise RunError(f"the leader answered with a {type(answer).__name__}")
        return answer

    def _query(self, payload: bytes) -> Answer:
        try:
            for reply in self._session.get(key_expressions.standby_key(), payload=payload, timeout=_ANSWER_TIMEOUT_S):
                if reply.ok is not None:
                    return decode_replica_answer(reply.ok.payload.to_bytes())
        except zenoh.ZError as error:
            raise _LeaderSilentError(str(error)) from None
        except WireError as error:
            raise RunError(f"the leader's answer cannot be decoded ({error})") from None
        raise _LeaderSilentError("no answer")

    def fetch_chunk(self, name: str, digest: str, offset: int) -> bytes:
        chunk = self.ask(ChunkRequest(token=self.token, name=name, digest=digest, offset=offset), FileChunk)
        if zlib.crc32(chunk.data) != chunk.crc:
            raise RunError(f"a chunk of {name} arrived damaged")
        return chunk.data

    def prefix_digest(self, length: int) -> str:
        return self.ask(PrefixRequest(token=self.token, length=length), PrefixDigest).digest


def depose_leader(endpoint: Endpoint, token: str, term: int) -> bool:
    """Tell a leader that another coordinator was promoted; whether it heard that."""
    try:
        session = open_session(endpoint, "client")
    except EndpointError:
        return False
    try:
        _LeaderConnection(session, token).ask(DeposeNotice(token=token, term=term), FileChunk)
    except (_LeaderSilentError, FollowRefusedError, RunError) as error:
        return "noted" in str(error)
    finally:
        session.close()  # type: ignore[no-untyped-call]
    return True
