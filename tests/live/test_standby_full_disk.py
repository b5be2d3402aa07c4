"""A standby whose disk is full says so in one line, and leads once there is space."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from potluck.run.standby_replication import standby_token
from tests.live.command_processes import Command, CommandRunner, live_status, wait_until
from tests.live.test_standby import Pair
from tests.small_disk import SmallDisk, mounted_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_disk(tmp_path / "disk", "4m") as disk:
        yield disk


@pytest.fixture
def pair(start_command: CommandRunner, disk: SmallDisk) -> Pair:
    """The standby's folder is on the small disk."""
    pair = Pair(start_command, None)
    pair.runs[1] = disk.path / "run"
    return pair


def _lead(pair: Pair) -> tuple[Command, str]:
    """The leader, and a token for standbys."""
    leader = pair.lead()
    wait_until("the leader to listen", lambda: "listening on" in leader.err)
    return leader, standby_token((pair.runs[0] / "join.secret").read_bytes(), "run", hours=1.0)


def _check_one_line(standby: Command, run: Path) -> None:
    assert standby.end() == 1, standby.err
    assert "Traceback" not in standby.err
    (line,) = [line for line in standby.err.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: cannot write {run}: No space left on device; free some space")


def test_a_standby_that_cannot_lead_for_want_of_space_leads_when_it_is_started_again(
    pair: Pair, start_command: CommandRunner, disk: SmallDisk
) -> None:
    leader, token = _lead(pair)
    standby = pair.follow_at(token, pair.addresses[0])
    wait_until("a copy", lambda: live_status(pair.runs[1]).get("follows"))
    os.kill(leader.pid, signal.SIGKILL)
    leader.end()
    disk.fill()
    promoted = start_command("promote", pair.runs[1])
    assert promoted.end() == 0, promoted.err
    _check_one_line(standby, pair.runs[1])
    disk.empty()
    again = pair.follow_at(token, pair.addresses[0])
    wait_until("the standby to lead", lambda: "leading run" in again.err)
    wait_until("a second coordinator's term", lambda: live_status(pair.runs[1]).get("term") == 2)


def test_a_copy_that_cannot_be_begun_is_one_line(pair: Pair, disk: SmallDisk) -> None:
    _, token = _lead(pair)
    disk.fill()
    standby = pair.follow_at(token, pair.addresses[0])
    _check_one_line(standby, pair.runs[1])


def test_a_copy_that_cannot_go_on_is_a_warning_until_there_is_space(pair: Pair, disk: SmallDisk) -> None:
    _, token = _lead(pair)
    standby = pair.follow_at(token, pair.addresses[0])
    wait_until("a copy", lambda: live_status(pair.runs[1]).get("follows"))
    disk.fill()
    wait_until("a warning", lambda: "the copy of the run cannot be written (No space left on device)" in standby.err)
    before = live_status(pair.runs[1])["updated"]
    disk.empty()
    wait_until("a newer status", lambda: live_status(pair.runs[1])["updated"] > before)
