"""Devices that are connected and do not work: the batch timer notices them long before nothing else helps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from potluck.loops.messages import Message
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import Assign, Fetch
from potluck.worlds.simulated.simulated_world import SimulatedWorld
from tests.simulation.pipelines import Story, job_of
from tests.simulation.test_pipeline_faults import bench, check, run

RETRY_S, STRUCK_S = 0.2, 0.5
STALL_S = 20 * RETRY_S  # without the timer, that long goes by before a new term begins


def deaf(device: str, lasting: str = "1000 s") -> dict[str, Any]:
    """Nothing gets through to it or from it, and yet it does not leave: its lease is renewed."""
    return {"kind": "lose", "device": device, "at": f"{STRUCK_S} s", "share": 1.0, "lasting": lasting}


def left_out(story: Story) -> list[str]:
    return [note.node for note in story.instants("left out")]


@pytest.mark.parametrize("device", ["d1", "d2", "d3"])
def test_who_swallows_batches_is_left_out_within_the_timer(tmp_path: Path, device: str) -> None:
    result, story = run(tmp_path / "run", [deaf(device)])
    check(result, story)
    assert left_out(story) == [device]
    assert story.instants("lost") == story.instants("stalled") == []
    assert story.instants("left out")[0].at < STRUCK_S + 13 * RETRY_S
    assert device not in story.instants("partition")[-1].fields["order"]
    assert result.summary["time_s"] < STRUCK_S + STALL_S


def test_without_the_timer_it_takes_twice_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the timer is worth: the same run with nothing but the rule for stalls."""
    timed, _ = run(tmp_path / "timed", [deaf("d2")])
    monkeypatch.setattr(BatchTimer, "silent_stages", lambda self, here: [])
    untimed, story = run(tmp_path / "untimed", [deaf("d2")])
    check(untimed, story)
    assert len(story.instants("stalled")) == 1
    assert untimed.summary["time_s"] - STRUCK_S > 1.8 * (timed.summary["time_s"] - STRUCK_S)


def test_who_answers_again_is_taken_in_again(tmp_path: Path) -> None:
    result, story = run(tmp_path / "run", [deaf("d0", "4 s")])
    check(result, story)
    assert left_out(story) == ["d0"]
    assert [note.node for note in story.instants("answers again")] == ["d0"]
    assert story.instants("partition")[-1].fields["order"][0] == "d0"


def test_where_nobody_is_heard_nobody_is_left_out(tmp_path: Path) -> None:
    """Then it is the coordinator's own link, and going on without them all would lose their work."""
    result, story = run(tmp_path / "run", [deaf("*", "3 s")])
    check(result, story)
    assert left_out(story) == []
    assert story.instants("rolled back") == []


@pytest.mark.parametrize(("pair", "out"), [(("d1", "d2"), "d2"), (("d0", "d1"), "d1"), (("d0", "d3"), "d3")])
def test_neighbours_that_cannot_reach_each_other_are_parted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], out: str
) -> None:
    """Both answer the coordinator, so no lease and no connection tells; the first sends the last one its labels."""
    _cut_between(monkeypatch, *pair)
    result, story = run(tmp_path / "run", [])
    check(result, story)
    assert left_out(story) == [out]
    assert f"cut off from {pair[0]}" in story.instants("left out")[0].fields["reason"]
    assert story.instants("stalled") == []
    assert result.summary["time_s"] < STRUCK_S + STALL_S


def test_a_message_that_was_lost_is_only_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_between(monkeypatch, "d1", "d2", until=STRUCK_S + 6 * RETRY_S)
    result, story = run(tmp_path / "run", [])
    check(result, story)
    assert len(story.instants("overdue")) > 0
    assert left_out(story) == []
    assert len(story.instants("partition")) == 1


def test_who_is_merely_slow_keeps_its_place(tmp_path: Path) -> None:
    """It is asked, and answers; from then on its time is the usual one."""
    slow = {"kind": "slow", "device": "d1", "at": f"{STRUCK_S} s", "factor": 0.004, "lasting": "1000 s"}
    no_repartition = {"every": 0, "on_change": False, "join": False}
    result, story = run(tmp_path / "run", [slow], pipeline={"adaptation": no_repartition})
    check(result, story)
    committed = [note.at for note in story.instants("committed")]
    longest = max(late - early for early, late in pairwise(committed))
    assert longest > 13 * RETRY_S, "as slow as one who is given up"
    assert len(story.instants("overdue")) > 0
    assert left_out(story) == []
    assert len(story.instants("partition")) == 1


@pytest.mark.parametrize("last_heard", [Fetch, Assign])
def test_who_falls_silent_while_nothing_flows_is_left_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_heard: type[Message]
) -> None:
    """When layers are handed out, or brought together for a checkpoint."""
    deliver, struck = SimulatedWorld._deliver_message, list[float]()

    def swallow(self: SimulatedWorld, origin: Any, target: Any, incarnation: int, envelope: Any) -> None:
        if target.name == "d2" and isinstance(envelope.message, last_heard):
            struck.append(self.loop.time())
        if not struck or "d2" not in (origin.name, target.name):
            deliver(self, origin, target, incarnation, envelope)

    monkeypatch.setattr(SimulatedWorld, "_deliver_message", swallow)
    result, story = run(tmp_path / "run", [], checkpoint=6)
    check(result, story)
    assert left_out(story) == ["d2"]
    assert story.instants("left out")[0].at < struck[0] + 16 * RETRY_S


def test_layers_that_take_long_to_travel_are_waited_for(tmp_path: Path) -> None:
    """Longer than one who is silent: who is asked again for what is on its way says so."""
    retry_s, narrow = 0.02, {"up": "20 kbit/s", "down": "20 kbit/s"}
    members = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": narrow} for index in range(3)]
    cuts = {"kind": "cuts", "after": [3, 4]}
    pipeline = {"batch": 8, "partition": cuts, "retry": f"{retry_s} s", "replication": "none"}
    job = job_of(members, pipeline=pipeline, stop={"rounds": 3}, evaluate=0, checkpoint=1)
    result = bench().simulate(job, tmp_path / "run")
    story = Story(tmp_path / "run")
    assert result.status == "done", result.reason
    assert max(span.end - span.start for span in story.spans("fetch")) > 13 * retry_s
    assert left_out(story) == []
    assert len(story.instants("partition")) == 1


def _cut_between(monkeypatch: pytest.MonkeyPatch, one: str, other: str, until: float = 1000.0) -> None:
    """From some moment on nothing gets from one of two devices to the other."""
    deliver = SimulatedWorld._deliver_message

    def cut(self: SimulatedWorld, origin: Any, target: Any, incarnation: int, envelope: Any) -> None:
        if {origin.name, target.name} != {one, other} or not STRUCK_S < self.loop.time() < until:
            deliver(self, origin, target, incarnation, envelope)

    monkeypatch.setattr(SimulatedWorld, "_deliver_message", cut)
