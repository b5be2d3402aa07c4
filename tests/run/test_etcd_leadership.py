"""A leader stops before etcd lets another one lead, whatever happens to its requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from potluck.errors import RunError, UserError
from potluck.run.etcd_client import EtcdClient, EtcdUnavailableError, parse_etcd_addresses
from potluck.run.etcd_leadership import ElectedLeader, EtcdElection
from potluck.run.leadership import LeadershipRecord, open_leadership
from potluck.run.live_options import ServeOptions
from potluck.worlds.live.leadership_lost import LeadershipLostError
from tests.live.command_processes import wait_until
from tests.live.etcd_server import EtcdServer, require_etcd

LEASE_S = 2.0
FIRST, SECOND = ElectedLeader("tcp/a:1", "run", "first"), ElectedLeader("tcp/b:1", "run", "second")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    try:
        yield server
    finally:
        server.stop()


def election(etcd: EtcdServer, name: str) -> EtcdElection:
    return EtcdElection.open([etcd.address], name, LEASE_S)


def test_one_of_two_leads_and_the_next_term_is_higher(etcd: EtcdServer) -> None:
    vote = election(etcd, "one of two")
    first = vote.try_to_lead(FIRST)
    assert first is not None
    assert vote.try_to_lead(SECOND) is None
    assert vote.current_leader() == ElectedLeader("tcp/a:1", "run", "first", first.term)
    first.release()
    second = vote.try_to_lead(SECOND)
    assert second is not None
    assert second.term > first.term
    with pytest.raises(LeadershipLostError, match="no longer leads"):
        first.check()
    second.release()


def test_a_leader_renews_its_lease(etcd: EtcdServer) -> None:
    vote = election(etcd, "renews")
    leadership = vote.try_to_lead(FIRST)
    assert leadership is not None
    time.sleep(1.5 * LEASE_S)
    leadership.check()
    leadership.release()


def test_a_leader_stops_before_etcd_deletes_its_key(etcd: EtcdServer) -> None:
    """Nothing is renewed: the local deadline passes while the key still exists."""
    vote = election(etcd, "deadline")
    asked_at = time.monotonic()
    leadership = vote.try_to_lead(FIRST)
    assert leadership is not None
    leadership._ended.set()  # the thread that renews stops
    while True:
        try:
            leadership.check()
        except LeadershipLostError:
            break
        time.sleep(0.01)
    assert time.monotonic() - asked_at < LEASE_S + 0.5
    assert vote.current_leader() is not None, "etcd was faster than the leader's own deadline"
    wait_until("the key to expire", lambda: vote.current_leader() is None, 30.0)


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="NOT TESTED: only Linux has this clock")
def test_a_machine_that_was_suspended_no_longer_leads(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a machine is suspended, etcd goes on counting; Linux's monotonic clock does not."""
    leadership = election(etcd, "suspended").try_to_lead(FIRST)
    assert leadership is not None
    read_clock = time.clock_gettime
    suspended = {time.CLOCK_BOOTTIME: 2 * LEASE_S, time.CLOCK_REALTIME: 2 * LEASE_S}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read_clock(clock) + suspended.get(clock, 0.0))
    with pytest.raises(LeadershipLostError, match="no longer leads"):
        leadership.check()
    leadership.release()


def test_a_fenced_leader_does_not_change_who_may_take_over(etcd: EtcdServer) -> None:
    vote = election(etcd, "fenced")
    first = vote.try_to_lead(FIRST)
    assert first is not None
    vote.client.revoke_lease(first._lease)  # as if it had expired, which the leader does not know yet
    second = vote.try_to_lead(SECOND)
    assert second is not None
    with pytest.raises(LeadershipLostError):
        first.set_in_sync(["first"])
    members = vote.in_sync()
    assert members is not None
    assert members.coordinators == ["second"]
    first.release()
    second.release()


def test_terms_grow_although_etcd_counts_from_the_start_again(etcd: EtcdServer) -> None:
    leadership = election(etcd, "wiped").try_to_lead(FIRST, lowest_term=10**9)
    assert leadership is not None
    assert leadership.term == 10**9
    leadership.set_in_sync(["second"])
    leadership.release()


def test_a_copy_that_lacks_something_does_not_lead(etcd: EtcdServer) -> None:
    options = ServeOptions(etcd=etcd.address, leader_lease_s=LEASE_S)
    first = open_leadership(LeadershipRecord(run="run", coordinator="first"), options, "lacks", "tcp/a:1")
    with pytest.raises(RunError, match=r"tcp/a:1 \(run run\) leads this job; follow it with `potluck serve --standby`"):
        open_leadership(LeadershipRecord(run="run", coordinator="second"), options, "lacks", "tcp/b:1")
    first.release()
    with pytest.raises(RunError, match="lacks what another coordinator committed"):
        open_leadership(LeadershipRecord(run="run", coordinator="second"), options, "lacks", "tcp/b:1")
    again = open_leadership(LeadershipRecord(run="run", coordinator="first"), options, "lacks", "tcp/a:1")
    again.release()


@pytest.mark.parametrize("address", ["10.0.0.5:2379", "ftp://a:1", "http://", "http://a:1/v3", ""])
def test_an_address_that_is_none_of_etcd_is_refused(address: str) -> None:
    with pytest.raises(UserError, match=r"--etcd.*http://192\.168\.1\.5:2379"):
        parse_etcd_addresses(address)


def test_an_etcd_that_is_not_there_is_named() -> None:
    with pytest.raises(EtcdUnavailableError, match=r"http://127\.0\.0\.1:9"):
        EtcdClient(["http://127.0.0.1:9"], 1.0).read("key")


def test_the_next_address_is_asked_where_one_does_not_answer(etcd: EtcdServer) -> None:
    client = EtcdClient(["http://127.0.0.1:9", etcd.address], 1.0)
    assert client.read("nothing") is None
    assert client.addresses[0] == etcd.address


def test_a_server_that_is_no_etcd_is_refused() -> None:
    class OtherServer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(["hello"]).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(EtcdUnavailableError, match="etcd cannot be used"):
            EtcdClient([f"http://127.0.0.1:{server.server_port}"], 2.0).read("key")
        server.shutdown()


def test_a_missing_httpx_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "httpx", None)
    with pytest.raises(UserError, match=r"pip install 'potluck\[standby\]'"):
        EtcdClient(["http://127.0.0.1:9"], 1.0)
