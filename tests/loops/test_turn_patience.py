"""A device that is connected but sends nothing of its turn costs a round its patience with that device, not the run."""

from __future__ import annotations

import itertools

import pytest

from potluck.errors import SettingError
from potluck.journal import Instant
from potluck.loops.messages import Invite, Joined, Lost, Pull, Release, Released
from potluck.loops.settings import Rounds
from potluck.settings import decode_settings
from tests.loops.recording_node import FixedPolicy, on_virtual_time
from tests.loops.test_rounds import Bench


def _events(bench: Bench, device: str) -> list[str]:
    wanted = ("left out", "answers again")
    return [each.name for each in bench.node.records if isinstance(each, Instant) and each.node == device
            and each.name in wanted]  # fmt: skip


async def _some_rounds(bench: Bench, seconds: float, count: int = 3) -> None:
    """Rounds in which every device takes this long."""
    for _ in range(count):
        await bench.node.advance(seconds)
        await bench.push("a")
        await bench.push("b")


@on_virtual_time
async def test_a_silent_device_is_left_out_after_its_patience_and_invited_once_it_is_idle() -> None:
    bench = Bench(retry="1 s")
    await bench.start_with("a", "b")
    await _some_rounds(bench, 2.0)
    await bench.push("a")
    hung = bench.turn_of("b")
    await bench.node.deliver("b", Pull(hung, 0, 1))
    await bench.node.advance(8 * 2.0)
    assert bench.progress.round == 3, "eight times what its turns take, and their spread"
    await bench.node.advance(8.0)
    assert bench.progress.round == 4
    assert bench.progress.left_out == {"b": hung}
    assert bench.node.sent_of(Release, "b")[0] == Release(hung, idle=True)

    await bench.push("a")
    assert bench.progress.round == 5, "the next round does not wait for it"
    assert bench.turn_of("b") == hung
    await bench.node.deliver("b", Released(hung))
    assert bench.progress.left_out == {"b": hung}, "it listens, but is not idle"
    await bench.node.deliver("b", Released(hung, idle=True))
    await bench.push("a")
    assert bench.turn_of("b") > hung
    assert _events(bench, "b") == ["left out", "answers again"]


@on_virtual_time
async def test_its_late_update_is_not_counted() -> None:
    bench = Bench(turn_patience="3 s")
    await bench.start_with("a", "b")
    await bench.push("a", samples=11)
    hung = bench.turn_of("b")
    await bench.node.advance(4.0)
    await bench.push("b", samples=99, turn=hung)
    await bench.node.deliver("b", Released(hung, idle=True))
    await bench.push("b", samples=99, turn=hung)
    await bench.push("a", samples=12)
    await bench.push("b", samples=13)
    assert 99 not in bench.server.merged
    assert bench.progress.round >= 2


@on_virtual_time
async def test_it_is_asked_again_with_growing_pauses() -> None:
    bench = Bench(retry="1 s", turn_patience="2 s")
    await bench.start_with("a", "b")
    await bench.push("a")
    await bench.node.advance(2.5)
    for _ in range(16):
        await bench.node.advance(1.0)
        await bench.push("a")
    times = bench.node.times_of(Release, "b")
    pauses = [round(after - before) for before, after in itertools.pairwise(times)]
    assert pauses == [1, 2, 4, 8]


@on_virtual_time
async def test_something_of_its_turn_renews_the_patience() -> None:
    bench = Bench(turn_patience="10 s")
    await bench.start_with("a", "b")
    await bench.push("a")
    for _ in range(5):
        await bench.node.advance(8.0)
        await bench.node.deliver("b", Pull(bench.turn_of("b"), 0, 1))
    assert bench.progress.left_out == {}
    await bench.push("b", first=1, last=1)
    await bench.node.advance(8.0)
    await bench.push("b", first=0, last=0)
    assert bench.progress.round == 1


@on_virtual_time
async def test_without_observed_turns_the_patience_is_generous() -> None:
    bench = Bench(patience="1 h")
    await bench.start_with("a", "b")
    await bench.push("a")
    await bench.node.advance(299.0)
    assert bench.progress.round == 0
    await bench.node.advance(2.0)
    assert bench.progress.round == 1


@on_virtual_time
async def test_a_checkpoint_does_not_wait_for_a_device_that_does_not_confirm() -> None:
    """A late device must confirm that it dropped its work before the run is saved; one that hangs never does."""
    policy = FixedPolicy(checkpoint=4)
    bench = Bench(policy, barrier={"kind": "quorum", "share": 0.5}, retry="1 s", turn_patience="10 s")
    await bench.start_with("a", "b")
    await _some_rounds(bench, 1.0)
    await bench.push("a")
    await bench.node.advance(3.0)
    assert bench.progress.round == 4
    assert bench.node.sent_of(Release, "b")[-1] == Release(bench.turn_of("b"))
    saved = len(policy.saved_rounds)
    await bench.node.advance(11.0)
    assert len(policy.saved_rounds) == saved + 1
    assert _events(bench, "b") == ["left out"]


@on_virtual_time
async def test_a_buffered_run_drains_without_it() -> None:
    policy = FixedPolicy(checkpoint=2)
    bench = Bench(policy, barrier={"kind": "buffered", "size": 1}, retry="1 s", turn_patience="10 s")
    await bench.start_with("a", "b")
    for _ in range(3):  # the third update was under way when the second one made a checkpoint due
        await bench.push("a")
    saved = len(policy.saved_rounds)
    await bench.node.advance(11.0)
    assert len(policy.saved_rounds) == saved + 1
    await bench.push("a")
    assert bench.progress.round == 4


@on_virtual_time
async def test_a_device_that_is_lost_and_returns_is_not_left_out() -> None:
    bench = Bench(turn_patience="3 s")
    await bench.start_with("a", "b")
    await bench.push("a")
    await bench.node.advance(4.0)
    await bench.node.deliver("b", Lost("b", 1, "killed"))
    await bench.node.deliver("b", Joined("b", 2), incarnation=2)
    await bench.push("a")
    assert bench.progress.left_out == {}
    assert len(bench.node.sent_of(Invite, "b")) == 2


@on_virtual_time
async def test_a_resumed_run_asks_those_it_had_left_out() -> None:
    bench = Bench()
    bench.progress.left_out["b"] = 17
    await bench.start_with("a", "b")
    assert bench.node.sent_of(Invite, "b") == []
    assert bench.node.sent_of(Release, "b") == [Release(17, idle=True)]
    await bench.node.deliver("b", Released(17, idle=True))
    await bench.push("a")
    assert len(bench.node.sent_of(Invite, "b")) == 1


@on_virtual_time
async def test_a_run_of_which_all_devices_hang_fails_after_its_patience() -> None:
    bench = Bench(turn_patience="3 s", patience="1 min")
    await bench.start_with("a", "b")
    await bench.node.advance(70.0)
    assert bench.node.result.status == "failed"
    assert "still waiting for a, b" in bench.node.result.reason


def test_the_patience_must_be_positive() -> None:
    with pytest.raises(SettingError, match="turn_patience"):
        decode_settings({"turn_patience": "0 s"}, Rounds)
