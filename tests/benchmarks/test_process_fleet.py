"""Fleets of real processes that scenarios kill, freeze and restart."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.faults.command_process import wait_until
from benchmarks.faults.process_fleet import ProcessFleet, rounds_job
from benchmarks.faults.process_usage import UsageSampler, process_usage
from benchmarks.faults.small_disk import fill_disk, missing_for_disks, set_read_only, small_disk


def test_a_fleet_survives_the_death_of_a_device_and_of_the_coordinator(tmp_path: Path) -> None:
    with ProcessFleet(tmp_path, rounds_job(devices=2, hidden=8, lease_s=1.0)) as fleet:
        fleet.wait_committed(2)
        with UsageSampler(fleet.pids, every_s=0.05) as usage:
            fleet.kill("d-1")
            assert not fleet.devices["d-1"].is_running
            fleet.wait_committed(fleet.commits.count + 2)
            fleet.restart("d-1")
            fleet.kill_coordinator()
            fleet.resume_coordinator()
            fleet.wait_committed(fleet.commits.count + 2)
        assert (fleet.commits.lost(), fleet.commits.doubled()) == (0, 0)
        assert fleet.ended_processes() == []
        assert usage.longest_life("coordinator")[-1].descriptors > 0
        assert usage.most_bytes("d-0") > 2**20
        pids = fleet.pids()
        assert pids.keys() == {"coordinator", "d-0", "d-1"}
    wait_until("the end of all processes", lambda: not any(map(_is_running, pids.values())), 30.0)


def test_a_process_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    with ProcessFleet(tmp_path, rounds_job(devices=1, hidden=8, lease_s=1.0)) as fleet:
        fleet.wait_committed(1)
        assert fleet.stop() != 0
        fleet.devices["d"].wait(60.0)
        assert [ended.partition(":")[0] for ended in fleet.ended_processes()] == ["coordinator", "d"]
        with pytest.raises(RuntimeError, match="the coordinator ended"):
            fleet.wait_committed(10**6)


def test_a_frozen_process_does_nothing_until_it_thaws(tmp_path: Path) -> None:
    with ProcessFleet(tmp_path, rounds_job(devices=1, hidden=8, lease_s=60.0)) as fleet:
        fleet.wait_committed(1)
        fleet.freeze("d")
        time.sleep(0.3)
        frozen_at = fleet.commits.count
        time.sleep(0.5)
        assert fleet.commits.count <= frozen_at + 1
        fleet.thaw("d")
        fleet.wait_committed(frozen_at + 3)


@pytest.mark.skipif(missing_for_disks() is not None, reason=str(missing_for_disks()))
def test_a_small_disk_is_filled_freed_and_made_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        filler = fill_disk(disk)
        with pytest.raises(OSError, match="No space"):
            (disk / "more").write_bytes(bytes(8192))
        filler.unlink()
        (disk / "more").write_bytes(bytes(8192))
        set_read_only(disk, True)
        with pytest.raises(OSError, match="Read-only"):
            (disk / "again").write_bytes(b"x")
        set_read_only(disk, False)
    assert list((tmp_path / "disk").iterdir()) == []


def _is_running(pid: int) -> bool:
    return process_usage(pid) is not None
