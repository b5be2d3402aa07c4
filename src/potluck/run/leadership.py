"""Who leads a run: the rule that a coordinator may commit only while it leads, and what decides that.

    Leadership        what a leading coordinator asks: may I still commit? in which term?
    SoleLeadership    without a coordination service: an operator decides (`potluck promote`)
    EtcdLeadership    a key in etcd that lives as long as its lease (`etcd_leadership.py`)

Each leader of a run has a *term*, a number that only grows: the fencing token. Devices refuse a coordinator whose term
is lower than one they have seen.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from potluck.atomic_file import read_decoded, write_atomically
from potluck.errors import RunError
from potluck.run.etcd_client import parse_etcd_addresses
from potluck.run.etcd_leadership import ElectedLeader, EtcdElection
from potluck.run.live_options import ServeOptions
from potluck.worlds.live.leadership_lost import LeadershipLostError

__all__ = [
    "LEADERSHIP_FILE",
    "Leadership",
    "LeadershipRecord",
    "SoleLeadership",
    "Takeover",
    "check_no_leader",
    "has_leadership_record",
    "load_leadership_record",
    "next_term",
    "open_leadership",
    "save_leadership_record",
]

LEADERSHIP_FILE = "leadership.json"

_POLL_S = 0.2


class Leadership(Protocol):
    """The right to commit, of one coordinator in one term."""

    term: int

    def check(self) -> None:
        """Raise LeadershipLostError unless this coordinator leads now; called before each commit and checkpoint."""

    def set_in_sync(self, standbys: list[str]) -> None:
        """Only these standbys, and this coordinator, may take over from now on."""

    def release(self) -> None:
        """Stop leading, so that another coordinator need not wait for a lease to expire."""


class SoleLeadership:
    """Leads until an operator promotes another coordinator and this one hears of it."""

    def __init__(self, term: int) -> None:
        self.term = term
        self._deposed_by = 0

    def check(self) -> None:
        if self._deposed_by:
            raise LeadershipLostError(f"another coordinator leads this run (term {self._deposed_by}, here {self.term})")

    def depose(self, term: int) -> None:
        """Another coordinator was promoted to a higher term."""
        self._deposed_by = max(self._deposed_by, term if term > self.term else 0)

    def set_in_sync(self, standbys: list[str]) -> None:
        pass

    def release(self) -> None:
        pass


class LeadershipRecord(msgspec.Struct, kw_only=True):
    """What a run's folder keeps of it; `coordinator` is the name of this folder's copy of the run."""

    run: str
    term: int = 1
    promoted: bool = False  # an operator decided that this copy leads next, whatever it lacks
    coordinator: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


def has_leadership_record(folder: Path) -> bool:
    """Whether a coordinator has led or followed a run in this folder."""
    return (folder / LEADERSHIP_FILE).exists()


def load_leadership_record(folder: Path) -> LeadershipRecord:
    """The record of a run's folder; a folder without one holds the only copy of a run of the same name."""
    record = read_decoded(folder / LEADERSHIP_FILE, msgspec.json.Decoder(LeadershipRecord).decode)
    return LeadershipRecord(run=folder.absolute().name) if record is None else record


def save_leadership_record(folder: Path, record: LeadershipRecord) -> None:
    write_atomically(folder / LEADERSHIP_FILE, msgspec.json.encode(record))


@dataclass(frozen=True)
class Takeover:
    """What a coordinator that begins to lead knows: its right to, and where others are."""

    leadership: Leadership
    former_addresses: Sequence[str] = ()  # of the other coordinators


def check_no_leader(options: ServeOptions, job_digest: str) -> None:
    """Before a new run has a folder: etcd answers, and nobody leads this job."""
    if options.etcd:
        election = EtcdElection.open(parse_etcd_addresses(options.etcd), job_digest, options.leader_lease_s)
        if election.current_leader() is not None:
            raise _led_elsewhere(election)


def open_leadership(record: LeadershipRecord, options: ServeOptions, job_digest: str, address: str) -> Leadership:
    """Begin to lead a run that no other coordinator leads; RunError says who does."""
    if not options.etcd:
        return SoleLeadership(record.term + record.promoted)
    election = EtcdElection.open(parse_etcd_addresses(options.etcd), job_digest, options.leader_lease_s)
    _check_may_lead(election, record)
    candidate = ElectedLeader(address, record.run, record.coordinator)
    leadership = election.try_to_lead(candidate, next_term(election, record))
    if leadership is None:
        raise _led_elsewhere(election)
    return leadership


def next_term(election: EtcdElection, record: LeadershipRecord) -> int:
    """Above every term of the run that this copy or etcd knows."""
    in_sync = election.in_sync()
    return max(record.term, in_sync.term if in_sync is not None and in_sync.run == record.run else 0) + 1


def _check_may_lead(election: EtcdElection, record: LeadershipRecord) -> None:
    """Wait for the lease of this copy's own former process; refuse to compete with another coordinator."""
    until = time.monotonic() + 2 * election.lease_s + 2.0
    while (leader := election.current_leader()) is not None:
        if leader.coordinator != record.coordinator or time.monotonic() > until:
            raise _led_elsewhere(election)
        time.sleep(_POLL_S)
    in_sync = None if record.promoted else election.in_sync()
    if in_sync is not None and in_sync.run == record.run and record.coordinator not in in_sync.coordinators:
        raise RunError(
            f"this copy of run {record.run} lacks what another coordinator committed in term {in_sync.term};"
            " follow that one with `potluck serve --standby`, or continue from this copy with `potluck promote`"
        )


def _led_elsewhere(election: EtcdElection) -> RunError:
    leader = election.current_leader()
    where = "another coordinator" if leader is None else f"the coordinator at {leader.address} (run {leader.run})"
    return RunError(
        f"etcd at {', '.join(election.client.addresses)}: {where} leads this job; follow it with"
        " `potluck serve --standby`, or stop it first"
    )
