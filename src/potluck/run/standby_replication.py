"""The leader's view of its standbys: which of them have all that was committed, and how long a commit waits for them.

    a standby has copied a checkpoint ──▶ from now on the leader waits for it, at every checkpoint
    it has the newest one             ──▶ in sync: it may take over
    it is silent for `wait_s`         ──▶ no longer in sync, and only then the leader goes on without it

So whoever may take over has every committed round but the latest, which is being copied while the next one trains.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from potluck.checkpoint_files import CHECKPOINT_FOLDER, newest_version
from potluck.journal.standby_status import StandbyStatus
from potluck.loops.run_progress import RunOutcome
from potluck.run.commit_guard import CommitGuard
from potluck.run.leadership import Leadership, LeadershipRecord, SoleLeadership
from potluck.run.run_store import RunStore
from potluck.worlds.live.leadership_lost import LeadershipLostError
from potluck.worlds.live.replica_messages import FollowRequest
from potluck.worlds.live.replica_server import ReplicaServer, ReplicaSource
from potluck.worlds.live.security import join_tokens
from potluck.worlds.live.security.admission_policy import AdmissionPolicy

__all__ = ["StandbyReplication", "standby_token"]

_CHECK_EVERY_S = 0.1  # whether this coordinator still leads
_WAIT_S = 5.0
_ANNOUNCED_AFTER_S = 0.5  # until the devices know the address of a new standby
_FORGET_AFTER_S = 60.0  # until the address of a standby that has gone is not announced any more
_STANDBY_NAME = "standby"

_log = logging.getLogger("potluck")


@dataclass
class _Standby:
    address: str
    version: int = -1
    journal_bytes: int = 0
    heard_at: float = 0.0
    known_since: float = field(default_factory=time.monotonic)
    is_awaited: bool = False  # the leader waits for it at every checkpoint
    is_in_sync: bool = False


class StandbyReplication(CommitGuard):
    """Lets a run commit only while its coordinator leads, and its standbys copy what was committed."""

    def __init__(
        self, folder: Path, record: LeadershipRecord, leadership: Leadership, admission: AdmissionPolicy, digest: str
    ) -> None:
        self._leadership = leadership
        self.wait_s = _WAIT_S  # how long a commit waits for a standby
        self._admission = admission
        self._run = record.run
        self.coordinator = record.coordinator
        self._standbys: dict[str, _Standby] = {}
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()  # one change of the in-sync set at a time
        self._newest = newest_version(folder / CHECKPOINT_FOLDER)
        self._progressed: Callable[[], None] = lambda: None  # wakes `wait_for_standbys`
        self.addresses: list[str] = []  # the leader's own, then those of coordinators that have led before
        self.on_standbys: Callable[[list[StandbyStatus]], None] = lambda standbys: None
        source = ReplicaSource(
            folder=folder,
            run=record.run,
            term=leadership.term,
            digest=digest,
            check_token=self._check_token,
            on_follow=self._on_follow,
            on_depose=self._on_depose,
            coordinators=self.coordinators,
        )
        self.server = ReplicaServer(source)

    @property
    def is_lost(self) -> bool:
        """Whether another coordinator leads, or may soon."""
        try:
            self.check()
        except LeadershipLostError:
            return True
        return False

    @property
    def term(self) -> int:
        return self._leadership.term

    async def lead(self, main: Coroutine[Any, Any, RunOutcome], store: RunStore) -> RunOutcome:
        """Run a coordinator's loop while it leads; at its end, wait until the standbys have all of the run."""
        leading = asyncio.ensure_future(main)
        try:
            while not (await asyncio.wait([leading], timeout=_CHECK_EVERY_S))[0]:
                self.check()
            outcome = leading.result()
        finally:
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
        store.write_last_checkpoint()
        self.server.end_run(outcome.status, outcome.reason)
        await self.wait_for_standbys()
        return outcome

    # --- CommitGuard -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        self._leadership.check()

    def on_checkpoint(self, version: int) -> None:
        with self._lock:
            self._newest = version
        self.server.notify_change()

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def wait_for_standbys(self) -> None:
        """Wait until all standbys that are in sync have the newest checkpoint; after `wait_s` go on without them."""
        if not self._behind():
            return
        loop, progressed = asyncio.get_running_loop(), asyncio.Event()
        self._progressed = lambda: _wake(loop, progressed)
        until = time.monotonic() + self.wait_s
        while behind := self._behind():
            self.check()
            if time.monotonic() >= until:
                await asyncio.to_thread(self._drop_standbys, behind)
                return
            progressed.clear()
            try:
                await asyncio.wait_for(progressed.wait(), min(0.1, max(0.0, until - time.monotonic())))
            except TimeoutError:
                continue

    def _behind(self) -> list[str]:
        with self._lock:
            return [
                name
                for name, standby in self._standbys.items()
                if standby.is_awaited and standby.version < self._newest
            ]

    def _drop_standbys(self, names: list[str]) -> None:
        with self._sync_lock:
            with self._lock:
                for name in names:
                    self._standbys[name].is_awaited = self._standbys[name].is_in_sync = False
            self._leadership.set_in_sync(self._in_sync_names())
        for name in names:
            _log.warning(
                "the standby at %s has not confirmed a checkpoint for %g s; the run goes on without it",
                self._standbys[name].address,
                self.wait_s,
            )
        self._report()

    # --- what standbys say, from the server's threads --------------------------------------------------------------

    def coordinators(self) -> list[str]:
        """Where devices may find a leader: here, at the standbys, and where one was before."""
        with self._lock:
            live = [
                standby.address
                for standby in self._standbys.values()
                if time.monotonic() - standby.heard_at < _FORGET_AFTER_S
            ]
        return list(dict.fromkeys([*self.addresses[:1], *live, *self.addresses[1:]]))[:8]

    def _on_follow(self, request: FollowRequest) -> None:
        with self._lock:
            standby = self._standbys.setdefault(request.coordinator, _Standby(request.address))
            standby.address, standby.heard_at = request.address, time.monotonic()
            if request.session == self.server.session and request.version >= 0:
                standby.version, standby.journal_bytes = request.version, request.journal_bytes
                standby.is_awaited = self.wait_s > 0
            else:
                standby.version = -1
            is_announced = time.monotonic() - standby.known_since > _ANNOUNCED_AFTER_S
            joins = is_announced and standby.version >= self._newest >= 0 and not standby.is_in_sync
        if joins:
            self._add_standby(request.coordinator)
        self._progressed()
        self._report()

    def _add_standby(self, name: str) -> None:
        with self._sync_lock:
            with self._lock:
                standby = self._standbys[name]
                standby.is_in_sync = standby.version >= self._newest and (standby.is_awaited or self.wait_s == 0)
            try:
                self._leadership.set_in_sync(self._in_sync_names())
            except LeadershipLostError:
                return
        if standby.is_in_sync:
            _log.info("the standby at %s has all that was committed", standby.address)

    def _in_sync_names(self) -> list[str]:
        with self._lock:
            return sorted(name for name, standby in self._standbys.items() if standby.is_in_sync)

    def _report(self) -> None:
        with self._lock:
            now = time.monotonic()
            statuses = [
                StandbyStatus(
                    address=standby.address,
                    in_sync=standby.is_in_sync,
                    lag_checkpoints=max(0, self._newest - max(0, standby.version)),
                    silent_s=round(now - standby.heard_at, 1),
                )
                for standby in self._standbys.values()
            ]
        self.on_standbys(statuses)

    def _on_depose(self, term: int) -> None:
        if isinstance(self._leadership, SoleLeadership):
            self._leadership.depose(term)

    def _check_token(self, token: str) -> str | None:
        """With certificates, access control lets only a coordinator's ask; without them, a token does."""
        if self._admission.authority_folder is not None:
            return None
        refusal = join_tokens.check_token(
            token, self._admission.secret, _standby_scope(self._run), _STANDBY_NAME, datetime.now(UTC)
        )
        return None if refusal is None else f"{refusal.partition(';')[0]}; `potluck serve` prints one for a standby"


def standby_token(secret: bytes, run: str, hours: float) -> str:
    """A token that lets a standby copy the run `run`, and no device join."""
    expires = datetime.now(UTC) + timedelta(hours=hours)
    return join_tokens.issue_token(secret, _standby_scope(run), expires, [_STANDBY_NAME])


def _standby_scope(run: str) -> str:
    return f"{run}/standby"


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:
        return  # the event loop is closed: the run has ended
