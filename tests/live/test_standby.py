"""A second coordinator follows the first one and leads when it is gone: nothing committed is lost or done twice."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.run import Result
from potluck.run.live_addresses import free_loopback_address
from potluck.run.live_options import load_options
from potluck.run.standby_replication import standby_token
from potluck.worlds.live.security.join_tokens import check_token
from tests.live.command_processes import Command, CommandRunner, live_status, wait_until, write_job
from tests.live.etcd_server import EtcdServer
from tests.live.live_scenarios import SMALL, check_committed_rounds, differing_tensors
from tests.live.test_coordinator_restart import joined

ROUNDS = 150
SETTINGS: dict[str, Any] = {
    "recipe": "sync-sgd",
    "stop": {"rounds": ROUNDS},
    "fleet": {**SMALL["fleet"], "lease": 5.0},
}


class Pair:
    """A leader and a standby of the same job, each with a folder and an address of its own."""

    def __init__(self, start_command: CommandRunner, etcd: EtcdServer | None, **settings: Any) -> None:
        self._start = start_command
        self._folder = start_command.folder
        self._job = write_job(self._folder, **{**SETTINGS, **settings})
        self._etcd = ["--etcd", etcd.address, "--leader-lease", "2"] if etcd is not None else []
        self.runs = [self._folder / "first" / "run", self._folder / "second" / "run"]
        self.addresses = [free_loopback_address().removeprefix("tcp/") for _ in range(2)]

    def lead(self, *words: str) -> Command:
        return self._serve(0, *words)

    def follow(self, leader: Command, position: int = 1) -> Command:
        token = wait_until("the command for a standby", partial(_standby_token, leader))
        return self._serve(position, "--standby", "--token", token)

    def follow_at(self, token: str, address: str, *words: str) -> Command:
        """Follow without etcd."""
        return self._serve(1, "--standby", "--token", token, "--connect", address, *words)

    def _serve(self, position: int, *words: str) -> Command:
        run = self.runs[position]
        return self._start(
            "serve", self._job, "--listen", self.addresses[position], "--out", run, "--json", *self._etcd, *words
        )


def _standby_token(leader: Command) -> str:
    lines = [line for line in leader.err.splitlines() if "--standby" in line]
    return lines[0].split("--token ")[1].split()[0] if lines else ""


def is_in_sync(run: Path) -> bool:
    return any(standby["in_sync"] for standby in live_status(run).get("standbys", []))


def committed(run: Path) -> int:
    return max((int(path.stem) for path in run.glob("checkpoints/0*.safetensors")), default=0)


def check_run(run: Path, command: Command, simulated: Path, settings: dict[str, Any]) -> None:
    """The run is complete, and its weights are those of a run that nobody disturbed."""
    summary = json.loads(command.out)
    check_committed_rounds(run, Result(summary["status"], summary["reason"], summary, run, None), ROUNDS)
    potluck.simulate({**SMALL, **settings}, folder=simulated)
    assert differing_tensors(run, simulated) == []


def test_a_standby_leads_when_the_leader_is_killed(
    start_command: CommandRunner, etcd: EtcdServer, tmp_path: Path
) -> None:
    pair = Pair(start_command, etcd)
    leader = pair.lead()
    standby = pair.follow(leader)
    with joined(leader):
        wait_until("a standby in sync", partial(is_in_sync, pair.runs[0]))
        wait_until("some rounds", lambda: committed(pair.runs[0]) >= 5)
        os.kill(leader.pid, signal.SIGKILL)
        before = committed(pair.runs[0])
        assert before < ROUNDS, "it was over before it was killed"
        assert standby.end() == 0, standby.err
    check_run(pair.runs[1], standby, tmp_path / "simulated", SETTINGS)


@pytest.mark.long
def test_a_frozen_leader_commits_nothing_once_another_leads(
    start_command: CommandRunner, etcd: EtcdServer, tmp_path: Path
) -> None:
    """SIGSTOP is what a partition looks like to everyone else: silent, and back later with old plans."""
    pair = Pair(start_command, etcd)
    leader = pair.lead()
    standby = pair.follow(leader)
    with joined(leader):
        wait_until("a standby in sync", partial(is_in_sync, pair.runs[0]))
        os.kill(leader.pid, signal.SIGSTOP)
        wait_until("the standby to lead", lambda: "leading run" in standby.err)
        before = committed(pair.runs[0])
        os.kill(leader.pid, signal.SIGCONT)
        wait_until("the former leader to stand by", lambda: "from now on it stands by" in leader.err)
        assert "no longer leads" in leader.err
        assert committed(pair.runs[0]) <= committed(pair.runs[1]) or before == committed(pair.runs[0])
        assert standby.end() == 0, standby.err
        assert leader.end() == 0, leader.err  # it has followed, and its copy is complete, too
    check_run(pair.runs[1], standby, tmp_path / "simulated", SETTINGS)
    assert differing_tensors(pair.runs[0], pair.runs[1]) == []


@pytest.mark.long
def test_a_leader_that_cannot_renew_its_lease_stops_and_leads_again_when_etcd_is_back(
    start_command: CommandRunner, etcd: EtcdServer, tmp_path: Path
) -> None:
    pair = Pair(start_command, etcd)
    leader = pair.lead()
    with joined(leader):
        wait_until("some rounds", lambda: committed(pair.runs[0]) >= 2)
        etcd.stop()
        wait_until("the leader to stop", lambda: "no longer leads" in leader.err)
        stopped_at = committed(pair.runs[0])
        assert stopped_at < ROUNDS, "it was over before etcd was stopped"
        etcd.start()
        assert leader.end() == 0, leader.err
    check_run(pair.runs[0], leader, tmp_path / "simulated", SETTINGS)


def test_an_operator_promotes_a_standby_and_the_former_leader_is_cut_off(
    start_command: CommandRunner, tmp_path: Path
) -> None:
    pair = Pair(start_command, None)
    leader = pair.lead()
    wait_until("the leader's folder", (pair.runs[0] / "join.secret").exists)
    token = standby_token((pair.runs[0] / "join.secret").read_bytes(), "run", hours=1.0)
    standby = pair.follow_at(token, pair.addresses[0])
    with joined(leader):
        wait_until("a standby in sync", partial(is_in_sync, pair.runs[0]))
        assert start_command("promote", pair.runs[1]).end() == 0
        assert leader.end() == 2
        assert "another coordinator leads this run (term 2, here 1)" in leader.err
        assert standby.end() == 0, standby.err
    check_run(pair.runs[1], standby, tmp_path / "simulated", SETTINGS)


def test_a_promotion_waits_for_etcd(start_command: CommandRunner, etcd: EtcdServer) -> None:
    pair = Pair(start_command, etcd)
    leader = pair.lead()
    standby = pair.follow(leader)
    wait_until("a copy", lambda: live_status(pair.runs[1]).get("follows"))
    os.kill(leader.pid, signal.SIGKILL)
    etcd.stop()
    promoted = start_command("promote", pair.runs[1])
    assert promoted.end() == 0, promoted.err
    wait_until("a warning", lambda: "etcd cannot be used" in standby.err)
    etcd.start()
    wait_until("the standby to lead", lambda: "leading run" in standby.err)
    wait_until("the end of the request", lambda: not (pair.runs[1] / "promote.request").exists())


def _check_tokens(coordinator: Command, run: Path) -> None:
    """Each token that was printed admits its own device alone."""
    wait_until("the invitations", lambda: len(coordinator.invitations()) == 4)
    secret, now = (run / "join.secret").read_bytes(), datetime.now(UTC)
    admitted = {
        (name, token_of)
        for token_of, (_, token) in coordinator.invitations().items()
        for name in coordinator.invitations()
        if check_token(token, secret, "run", name, now) is None
    }
    assert admitted == {(name, name) for name in coordinator.invitations()}


def test_a_standby_leads_with_the_options_of_its_leader(start_command: CommandRunner) -> None:
    """Also when it was restarted since, and never heard of its leader again."""
    pair = Pair(start_command, None)
    leader = pair.lead("--token-each", "--wait", "300")
    _check_tokens(leader, pair.runs[0])
    token = standby_token((pair.runs[0] / "join.secret").read_bytes(), "run", hours=1.0)
    first = pair.follow_at(token, pair.addresses[0], "--wait", "200")
    wait_until("a copy", lambda: live_status(pair.runs[1]).get("follows"))
    for process in (leader, first):
        os.kill(process.pid, signal.SIGKILL)
        process.end()
    standby = pair.follow_at(token, pair.addresses[0], "--wait", "200")
    wait_until("the next standby", lambda: live_status(pair.runs[1])["pid"] == standby.pid)
    promoted = start_command("promote", pair.runs[1])
    assert promoted.end() == 0, promoted.err
    _check_tokens(standby, pair.runs[1])
    options = load_options(pair.runs[1])
    assert options is not None
    assert options.serve is not None
    assert (options.serve.listen, options.serve.wait_s) == (pair.addresses[1], 300.0)


def test_a_standby_of_another_job_is_refused(start_command: CommandRunner) -> None:
    pair = Pair(start_command, None)
    leader = pair.lead()
    wait_until("the leader's folder", (pair.runs[0] / "join.secret").exists)
    wait_until("the leader to listen", lambda: "listening on" in leader.err)
    token = standby_token((pair.runs[0] / "join.secret").read_bytes(), "run", hours=1.0)
    standby = pair.follow_at(token, pair.addresses[0], "--seed", "7")
    assert standby.end() == 2
    assert "the leader of run run trains another job" in standby.err
    stranger = pair.follow_at("nonsense", pair.addresses[0])
    assert stranger.end() == 2
    assert "`potluck serve` prints one for a standby" in stranger.err
    assert not pair.runs[1].exists(), "nothing was copied"
