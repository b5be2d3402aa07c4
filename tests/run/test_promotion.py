"""A copy that an operator promoted leads once, whatever it lacks, in a term above all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import potluck
from potluck.errors import RunError, StorageError
from potluck.job import make
from potluck.run.etcd_leadership import ElectedLeader, EtcdElection
from potluck.run.leadership import load_leadership_record, open_leadership
from potluck.run.live_addresses import free_loopback_address
from potluck.run.live_options import ServeOptions
from potluck.run.live_run import job_digest
from potluck.run.promotion import promote
from tests.live.etcd_server import EtcdServer, require_etcd
from tests.live.live_scenarios import SMALL
from tests.small_disk import mounted_disk

LEASE_S = 2.0
DIGEST = job_digest(make(SMALL))


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    require_etcd()
    server = EtcdServer(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class StoppingObserver(potluck.LiveObserver):
    """Stops the run as soon as it may."""

    def should_stop(self) -> bool:
        return True


def stopped_options(etcd: str = "") -> ServeOptions:
    listen = free_loopback_address().removeprefix("tcp/")
    return ServeOptions(listen=listen, wait_s=0.1, etcd=etcd, leader_lease_s=LEASE_S)


def _start(folder: Path, etcd: str = "") -> None:
    """A live run whose coordinator has led and ended."""
    potluck.serve(SMALL, folder=folder, options=stopped_options(etcd), observer=StoppingObserver())


def _resume(folder: Path) -> None:
    potluck.resume(folder, options=potluck.ResumeOptions(observer=StoppingObserver()))


def _lead_elsewhere(etcd: EtcdServer, run: str, lowest_term: int) -> int:
    """Another coordinator leads and dies, without this copy in sync; its term."""
    election = EtcdElection.open([etcd.address], DIGEST, LEASE_S)
    leadership = election.try_to_lead(ElectedLeader("tcp/b:1", run, "another"), lowest_term)
    assert leadership is not None
    leadership.release()
    return leadership.term


def test_a_promoted_copy_that_lacks_something_leads_once(tmp_path: Path, etcd: EtcdServer) -> None:
    run = tmp_path / "run"
    _start(run, etcd.address)
    elsewhere = _lead_elsewhere(etcd, "run", lowest_term=1000)
    with pytest.raises(RunError, match="continue from this copy with `potluck promote`"):
        _resume(run)
    assert f"`potluck resume {run}`" in promote(run)
    _resume(run)
    assert load_leadership_record(run).term > elsewhere
    _lead_elsewhere(etcd, "run", lowest_term=2000)
    with pytest.raises(RunError, match="continue from this copy with `potluck promote`"):
        _resume(run)


def test_a_promoted_copy_does_not_replace_a_living_leader(tmp_path: Path, etcd: EtcdServer) -> None:
    run = tmp_path / "run"
    _start(run, etcd.address)
    election = EtcdElection.open([etcd.address], DIGEST, LEASE_S)
    leadership = election.try_to_lead(ElectedLeader("tcp/b:1", "run", "another"))
    assert leadership is not None
    promote(run)
    with pytest.raises(RunError, match="leads this job"):
        open_leadership(load_leadership_record(run), stopped_options(etcd.address), DIGEST, "tcp/a:1")
    leadership.release()


def test_without_etcd_a_promoted_copy_leads_in_the_next_term(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _start(run)
    assert load_leadership_record(run).term == 1
    promote(run)
    promote(run)
    _resume(run)
    assert load_leadership_record(run).term == 2
    _resume(run)
    assert load_leadership_record(run).term == 2


def test_a_promotion_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk", "4m") as disk:
        _start(disk.path / "run")
        disk.fill()
        with pytest.raises(StorageError, match="No space left on device"):
            promote(disk.path / "run")
        assert not load_leadership_record(disk.path / "run").promoted
