"""Whoever may take over has all that was committed; a standby that does not keep up is left behind, in that order."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from potluck.run.leadership import LeadershipRecord, SoleLeadership
from potluck.run.standby_replication import StandbyReplication, standby_token
from potluck.worlds.live.leadership_lost import LeadershipLostError
from potluck.worlds.live.replica_messages import FollowRequest
from potluck.worlds.live.security.admission_policy import AdmissionPolicy


class RecordingLeadership(SoleLeadership):
    """Notes who may take over."""

    def __init__(self) -> None:
        super().__init__(term=1)
        self.in_sync: list[list[str]] = []

    def set_in_sync(self, standbys: list[str]) -> None:
        self.in_sync.append(standbys)


class Fixture:
    def __init__(self, folder: Path) -> None:
        self.leadership = RecordingLeadership()
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "checkpoints" / "00000009-copy.safetensors").touch()  # somebody else's: it does not count
        self.admission = AdmissionPolicy.for_run(folder, "run", ["d"], None)
        record = LeadershipRecord(run="run", coordinator="leader")
        self.replication = StandbyReplication(folder, record, self.leadership, self.admission, "job")
        self.replication.wait_s = 0.3

    def follow(self, version: int, session: str | None = None, known_s: float = 1.0) -> None:
        """A standby that the leader has known for `known_s` says what it has."""
        session = self.replication.server.session if session is None else session
        request = FollowRequest(
            coordinator="standby", address="tcp/b:1", digest="job", version=version, session=session
        )
        self.replication._on_follow(request)
        self.replication._standbys["standby"].known_since = time.monotonic() - known_s
        self.replication._on_follow(request)

    def wait(self) -> float:
        began = time.monotonic()
        asyncio.run(self.replication.wait_for_standbys())
        return time.monotonic() - began


@pytest.fixture
def run(tmp_path: Path) -> Fixture:
    return Fixture(tmp_path / "run")


def test_a_standby_with_the_newest_checkpoint_may_take_over(run: Fixture) -> None:
    run.replication.on_checkpoint(3)
    run.follow(2)
    assert run.leadership.in_sync == []
    run.follow(3)
    assert run.leadership.in_sync == [["standby"]]


def test_devices_know_of_a_standby_before_it_may_take_over(run: Fixture) -> None:
    run.replication.on_checkpoint(3)
    run.follow(3, known_s=0.0)
    assert run.leadership.in_sync == []
    assert "tcp/b:1" in run.replication.coordinators()


def test_a_copy_of_another_leader_does_not_count(run: Fixture) -> None:
    run.replication.on_checkpoint(3)
    run.follow(3, session="of a former leader")
    assert run.leadership.in_sync == []
    assert run.wait() < 0.2


def test_the_next_commit_waits_until_the_standby_has_this_one(run: Fixture) -> None:
    run.replication.wait_s = 30.0
    run.replication.on_checkpoint(1)
    run.follow(1)
    run.replication.on_checkpoint(2)

    async def confirm_later() -> float:
        began = time.monotonic()
        waiting = asyncio.create_task(run.replication.wait_for_standbys())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await asyncio.to_thread(run.follow, 2)
        await waiting
        return time.monotonic() - began

    assert asyncio.run(confirm_later()) < 20.0
    assert run.leadership.in_sync == [["standby"]], "it was in sync all the time"


def test_a_silent_standby_may_not_take_over_before_the_leader_goes_on_without_it(run: Fixture) -> None:
    run.replication.on_checkpoint(1)
    run.follow(1)
    run.replication.on_checkpoint(2)
    assert run.wait() >= 0.3
    assert run.leadership.in_sync == [["standby"], []]
    assert run.wait() < 0.2, "the leader waits for it only once"
    run.follow(2)
    assert run.leadership.in_sync[-1] == ["standby"], "it has caught up"


def test_without_waiting_a_standby_is_in_sync_as_soon_as_it_has_everything(run: Fixture) -> None:
    run.replication.wait_s = 0.0
    run.replication.on_checkpoint(1)
    run.follow(1)
    assert run.leadership.in_sync == [["standby"]]
    run.replication.on_checkpoint(2)
    assert run.wait() < 0.2


def test_a_leader_that_hears_of_a_higher_term_commits_nothing(run: Fixture) -> None:
    run.replication._on_depose(1)
    run.replication.check()
    run.replication._on_depose(2)
    with pytest.raises(LeadershipLostError, match=r"term 2, here 1"):
        run.replication.check()


def test_only_a_token_for_standbys_lets_one_copy_the_run(run: Fixture) -> None:
    check = run.replication._check_token
    device_token = run.admission.issue_token(datetime.now(UTC) + timedelta(hours=1))
    assert check(standby_token(run.admission.secret, "run", 1.0)) is None
    for token in ("", "nonsense", device_token, standby_token(run.admission.secret, "other", 1.0)):
        assert check(token) is not None
    assert run.admission.refusal_reason("d", standby_token(run.admission.secret, "run", 1.0), datetime.now(UTC))
