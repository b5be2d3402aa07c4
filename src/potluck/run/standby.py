"""Runs a standby: copies the leader's run, and leads it from the copy when the leader is gone.

follow ──┬── the leader's lease is gone, and this copy is in sync (etcd) ──┐
         ├── an operator promotes it (`potluck promote`) ──────────────────┴──▶ lead from the newest checkpoint
         └── the run is over ──▶ write the model and the summary from the copy
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import UserError
from potluck.loops.run_progress import RunOutcome
from potluck.run.etcd_client import EtcdUnavailableError, parse_etcd_addresses
from potluck.run.etcd_leadership import ElectedLeader, EtcdElection
from potluck.run.join_address import choose_join_locator
from potluck.run.leadership import Leadership, SoleLeadership, Takeover, next_term
from potluck.run.live_addresses import coordinator_locator, listen_locator
from potluck.run.live_options import KeptOptions, ServeOptions
from potluck.run.live_run import (
    LiveObserver,
    LogObserver,
    RejoiningDevices,
    coordinator_endpoint,
    job_digest,
    prepare_live_job,
    serve,
    serve_prepared,
)
from potluck.run.prepared_job import GivenJob, PreparedJob
from potluck.run.promotion import is_promotion_requested
from potluck.run.run_result import Result, run_to_end
from potluck.run.run_store import Watch
from potluck.run.standby_folder import StandbyFolder
from potluck.run.standby_replication import standby_token
from potluck.task import Task
from potluck.worlds.live.leadership_lost import LeadershipLostError
from potluck.worlds.live.replica_client import (
    FollowOptions,
    ReplicaFollower,
    depose_leader,
)
from potluck.worlds.live.replica_messages import FollowRequest
from potluck.worlds.live.security import certificate_register
from potluck.worlds.live.security.access_control import coordinator_access
from potluck.worlds.live.security.join_tokens import load_run_secret
from potluck.worlds.live.standby_admission import StandbyAdmission
from potluck.worlds.live.zenoh_session import Endpoint

__all__ = ["StandbyOptions", "serve_in_turn", "stand_by"]

_POLL_S = 0.1
_OWN_TOKEN_HOURS = 1.0
_SETTLE_S = 10.0  # for devices of the former leader, once enough of them are back
_CLOSE_TIMEOUT_S = 15.0  # a session whose peer is gone takes up to 10 s to close

_SERVE_DEFAULTS = ServeOptions()

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class StandbyOptions:
    """Whom a standby follows."""

    connect: str = ""  # the leader's address; with etcd, the one that etcd knows
    token: str = ""  # for a standby, printed by `potluck serve`; not needed with certificates

    def check(self, etcd: str) -> None:
        if not (self.connect or etcd):
            raise UserError("--standby: whom to follow? pass --connect HOST:PORT (the leader's address) or --etcd URL")


_NOBODY = StandbyOptions()


def serve_in_turn(
    job: GivenJob,
    *,
    folder: Path | None,
    new_folder: Path,
    data: Path | None = None,
    options: ServeOptions = _SERVE_DEFAULTS,
    following: StandbyOptions | None = None,
    observer: LiveObserver | None = None,
) -> Result | None:
    """Lead a run or, with `following`, stand by; a leader that loses its lease to etcd stands by from then on.

    None if a standby was asked to stop.
    """
    if options.etcd:
        EtcdElection.open(parse_etcd_addresses(options.etcd), "probe", options.leader_lease_s).current_leader()
    while True:
        try:
            if following is None:
                return serve(job, folder=folder or new_folder, data=data, options=options, observer=observer)
            return stand_by(job, folder=folder, data=data, options=options, following=following, observer=observer)
        except LeadershipLostError as error:
            if not options.etcd:
                raise
            _log.warning("%s; from now on it stands by", error)
            folder, following = (folder or new_folder) if following is None else folder, following or StandbyOptions()


def stand_by(
    job: GivenJob,
    *,
    folder: Path | None = None,
    task: Task | None = None,
    data: Path | None = None,
    options: ServeOptions = _SERVE_DEFAULTS,
    following: StandbyOptions = _NOBODY,
    observer: LiveObserver | None = None,
) -> Result | None:
    """Follow the leader of this job into `folder` (by default runs/NAME), and lead when it is gone.

    The result is that of the run, whoever led it in the end; None if the observer stopped the standby.
    """
    following.check(options.etcd)
    listen_locator(options.listen, options.certs, options.insecure)
    prepared = prepare_live_job(job, task, data)
    standby = _Standby(prepared, options, following, folder, data)
    return standby.run(observer or LogObserver(), observer.on_round if observer else None)


class _Standby:
    """One standby, from its start until it leads or the run is over."""

    def __init__(
        self,
        prepared: PreparedJob,
        options: ServeOptions,
        following: StandbyOptions,
        folder: Path | None,
        data: Path | None,
    ) -> None:
        self._prepared = prepared
        self._options = options
        self._following = following
        self._folder = StandbyFolder(prepared, KeptOptions(serve=options, data=data), folder)
        self._digest = job_digest(prepared.job)
        self._election: EtcdElection | None = None
        if options.etcd:
            addresses = parse_etcd_addresses(options.etcd)
            self._election = EtcdElection.open(addresses, self._digest, options.leader_lease_s)
        self._leader = self._given_address()
        self._endpoint = self._listening_endpoint()
        self._address = choose_join_locator(self._endpoint.listen[0], self._endpoint.tls)
        self._warned = ""

    def run(self, observer: LiveObserver, watch: Watch | None) -> Result | None:
        with contextlib.closing(self._folder):
            follower = ReplicaFollower(self._follow_options())
            waiting = StandbyAdmission(self._endpoint)
            try:
                follower.start()
                while not observer.should_stop():
                    if follower.error is not None:
                        raise follower.error
                    if follower.is_over.is_set():
                        return self._finish(follower, watch)
                    leadership = self._try_to_lead(follower)
                    if leadership is not None:
                        follower.stop()
                        waiting.close()
                        return self._take_over(leadership, follower, observer, watch)
                    time.sleep(_POLL_S)
                return None
            finally:
                follower.stop()
                waiting.close()
                follower.join(_CLOSE_TIMEOUT_S)

    # --- following -------------------------------------------------------------------------------------------------

    def _given_address(self) -> str | None:
        protocol = "tls" if self._options.certs is not None else "tcp"
        return coordinator_locator(self._following.connect, protocol) if self._following.connect else None

    def _listening_endpoint(self) -> Endpoint:
        names = [device.name for device in self._prepared.job.fleet.members]
        certs = self._options.certs
        admitted = {} if certs is None else certificate_register.admitted_common_names(certs, names)
        rules = None if certs is None else coordinator_access(admitted)
        return coordinator_endpoint(self._prepared, rules, self._options)

    def _follow_options(self) -> FollowOptions:
        folder = self._folder
        return FollowOptions(
            request=FollowRequest(coordinator=folder.record.coordinator, address=self._address, digest=self._digest),
            endpoint=Endpoint(tls=self._endpoint.tls, lease=float(self._prepared.job.fleet.lease)),
            leader_address=lambda: self._leader,
            copy=folder.open_existing(self._endpoint.listen[0]),
            open_copy=folder.open_copy,
            accept=folder.accept_manifest,
            on_update=lambda state: folder.show_lag(state, self._leader or "", self._endpoint.listen[0]),
            token=self._token,
        )

    def _token(self) -> str:
        """The one that was given; a coordinator that has had the run's secret issues its own."""
        path = self._folder.path
        if self._following.token or path is None or not (path / "join.secret").exists():
            return self._following.token
        return standby_token(load_run_secret(path), self._folder.record.run, _OWN_TOKEN_HOURS)

    # --- taking over -----------------------------------------------------------------------------------------------

    def _try_to_lead(self, follower: ReplicaFollower) -> Leadership | None:
        try:
            if self._is_promoted():
                return self._lead_by_promotion()
            return None if self._election is None else self._lead_by_election(self._election, follower)
        except EtcdUnavailableError as error:
            self._warn(str(error))
            return None

    def _is_promoted(self) -> bool:
        return self._folder.path is not None and is_promotion_requested(self._folder.path)

    def _lead_by_promotion(self) -> Leadership | None:
        assert self._folder.path is not None
        leadership: Leadership | None = SoleLeadership(self._folder.record.term + 1)
        if self._election is not None:
            leadership = self._election.try_to_lead(self._candidate(), next_term(self._election, self._folder.record))
        elif self._leader is not None:
            endpoint = Endpoint(connect=(self._leader,), tls=self._endpoint.tls, connect_timeout_s=1.0)
            depose_leader(endpoint, self._token(), self._folder.record.term + 1)
        if leadership is None:
            self._warn("it cannot be promoted while another coordinator leads; stop that one first")
        return leadership

    def _lead_by_election(self, election: EtcdElection, follower: ReplicaFollower) -> Leadership | None:
        leader = election.current_leader()
        if leader is not None:
            self._leader = leader.address if not self._following.connect else self._leader
            return None
        if follower.copy is None:
            return None
        in_sync = election.in_sync()
        if in_sync is None or in_sync.run != self._folder.record.run:
            return None
        if self._folder.record.coordinator not in in_sync.coordinators:
            self._warn(
                f"nobody leads run {self._folder.record.run}, and this copy lacks what was committed in term"
                f" {in_sync.term}; `potluck promote {self._folder.path}` leads from it nevertheless"
            )
            return None
        return election.try_to_lead(self._candidate(), next_term(election, self._folder.record))

    def _candidate(self) -> ElectedLeader:
        return ElectedLeader(self._address, self._folder.record.run, self._folder.record.coordinator)

    def _take_over(
        self, leadership: Leadership, follower: ReplicaFollower, observer: LiveObserver, watch: Watch | None
    ) -> Result:
        manifest, least = follower.state.manifest, self._least_devices()
        _log.warning("leading run %s from now on, in term %d", self._folder.record.run, leadership.term)
        others = [address for address in (self._leader, *(manifest.coordinators if manifest else ())) if address]
        try:
            store, members = self._folder.begin_leading(watch, observer.should_stop)
            rejoining = RejoiningDevices(members, least, _SETTLE_S) if members else None
            taking_over, options = Takeover(leadership, others), self._folder.options
            return serve_prepared(self._prepared, store, options, observer, rejoining, taking_over)
        except BaseException:
            leadership.release()
            raise

    def _least_devices(self) -> int:
        job = self._prepared.job
        return job.rounds.least if job.pipeline is None else 1

    def _finish(self, follower: ReplicaFollower, watch: Watch | None) -> Result:
        """The run is over: write from the copy what the leader writes at the end."""
        manifest = follower.state.manifest
        assert manifest is not None
        outcome = RunOutcome(manifest.status, manifest.ended)
        follower.stop()
        store, _ = self._folder.begin_leading(watch, lambda: False)
        return run_to_end(self._prepared, store, lambda: outcome)

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            _log.warning("%s", text)
