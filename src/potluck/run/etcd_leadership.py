"""Elects the leader of a run with etcd: a key that exists once and is deleted when its lease expires.

    potluck/{job}/leader    {address, run}, attached to the leader's lease; its create revision is the term
    potluck/{job}/in_sync   the coordinators that have all that was committed: only they may take over

The leader counts its lease from *before* each request to renew it, on a clock of its own that also counts while the
machine is suspended, and stops a little earlier than etcd would: when the key is deleted, the leader has already
stopped committing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import Self, TypeVar

import msgspec

from potluck.errors import UserError
from potluck.run.etcd_client import EtcdClient, EtcdUnavailableError
from potluck.worlds.live.leadership_lost import LeadershipLostError

__all__ = ["ElectedLeader", "EtcdElection", "EtcdLeadership", "InSyncSet"]

_RENEWALS_PER_LEASE = 4
_SAFE_FRACTION = 0.95  # of the lease, within which a leader commits: clocks may run at slightly different rates

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # Linux's monotonic clock stops during a suspend

Value = TypeVar("Value")


class ElectedLeader(msgspec.Struct, frozen=True):
    """The value of the leader's key."""

    address: str
    run: str
    coordinator: str = ""
    term: int = 0  # the key's create revision; not part of its value


class InSyncSet(msgspec.Struct, frozen=True):
    """The coordinators that may take over, and the term in which that was written."""

    run: str
    term: int
    coordinators: list[str]


class EtcdElection:
    """The election of one job's leader."""

    def __init__(self, client: EtcdClient, job_digest: str, lease_s: float) -> None:
        self.client = client
        self.lease_s = math.ceil(lease_s)
        self.leader_key = f"potluck/{job_digest[:32]}/leader"
        self.in_sync_key = f"potluck/{job_digest[:32]}/in_sync"

    @classmethod
    def open(cls, addresses: list[str], job_digest: str, lease_s: float) -> Self:
        return cls(EtcdClient(addresses, timeout_s=max(0.2, lease_s / _RENEWALS_PER_LEASE)), job_digest, lease_s)

    def current_leader(self) -> ElectedLeader | None:
        """Who leads; None while nobody does."""
        entry = self.client.read(self.leader_key)
        if entry is None:
            return None
        leader = _decode(entry.value, ElectedLeader, self.leader_key)
        return msgspec.structs.replace(leader, term=entry.create_revision)

    def in_sync(self) -> InSyncSet | None:
        """Who may take over; None before the first leader."""
        entry = self.client.read(self.in_sync_key)
        return None if entry is None else _decode(entry.value, InSyncSet, self.in_sync_key)

    def try_to_lead(self, candidate: ElectedLeader, lowest_term: int = 0) -> EtcdLeadership | None:
        """Lead from now on; None if another coordinator does.

        `lowest_term` keeps terms growing where etcd has lost its data and counts from the start again.
        """
        asked_at = _lease_clock_s()
        lease, seconds = self.client.grant_lease(self.lease_s)
        revision = self.client.create(self.leader_key, msgspec.json.encode(candidate), lease)
        if revision is None:
            with contextlib.suppress(EtcdUnavailableError):
                self.client.revoke_lease(lease)
            return None
        leadership = EtcdLeadership(self, candidate, revision, lease)
        leadership.term = max(revision, lowest_term)
        leadership.extend(asked_at, seconds)
        leadership.set_in_sync([])
        leadership.start_renewing(seconds / _RENEWALS_PER_LEASE)
        return leadership


class EtcdLeadership:
    """Leads while the lease is renewed."""

    def __init__(self, election: EtcdElection, candidate: ElectedLeader, revision: int, lease: int) -> None:
        self.term = self._revision = revision
        self._election = election
        self._candidate = candidate
        self._lease = lease
        self._expires_at = -math.inf
        self._problem = "its lease expired"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def extend(self, asked_at: float, seconds: float) -> None:
        """The lease was granted or renewed for `seconds` by a request that was made at `asked_at`."""
        if not self._ended.is_set():
            self._expires_at = max(self._expires_at, asked_at + _SAFE_FRACTION * seconds)

    def start_renewing(self, interval_s: float) -> None:
        self._thread = threading.Thread(
            target=self._renew_periodically, args=(interval_s,), name="potluck-leader-lease", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        if _lease_clock_s() >= self._expires_at:
            raise LeadershipLostError(f"this coordinator no longer leads the run (term {self.term}): {self._problem}")

    def set_in_sync(self, standbys: list[str]) -> None:
        members = InSyncSet(self._candidate.run, self.term, [self._candidate.coordinator, *standbys])
        key, election = self._election.in_sync_key, self._election
        while True:
            self.check()
            try:
                if election.client.put_while(election.leader_key, self._revision, key, msgspec.json.encode(members)):
                    return
                self._end("another coordinator leads")
            except EtcdUnavailableError as error:
                self._problem = str(error)
                time.sleep(0.05)

    def release(self) -> None:
        self._end("it has ended")
        if self._thread is not None:
            self._thread.join(self._election.lease_s)  # a request to etcd takes no longer
        with contextlib.suppress(EtcdUnavailableError):
            self._election.client.revoke_lease(self._lease)

    def _renew_periodically(self, interval_s: float) -> None:
        while not self._ended.wait(interval_s):
            asked_at = _lease_clock_s()
            if asked_at >= self._expires_at:
                return
            try:
                seconds = self._election.client.renew_lease(self._lease)
            except EtcdUnavailableError as error:
                self._problem = f"its lease could not be renewed: {error}"
                continue
            if seconds <= 0:
                self._end("its lease expired in etcd")
                return
            self.extend(asked_at, seconds)

    def _end(self, problem: str) -> None:
        self._ended.set()
        self._problem, self._expires_at = problem, -math.inf


def _lease_clock_s() -> float:
    return time.clock_gettime(_CLOCK)


def _decode(data: bytes, kind: type[Value], key: str) -> Value:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise UserError(
            f"the key {key} in etcd is not Potluck's ({error}); use another etcd or delete the key"
        ) from None
