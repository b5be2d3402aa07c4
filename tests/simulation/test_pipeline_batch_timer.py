"""Devices that are connected but do not work: the batch timer notices them long before the stall timeout."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from potluck.loops.messages import Message
from potluck.loops.pipeline.batch_timer import BatchTimer
from potluck.loops.pipeline.messages import Assign, Fetch
from potluck.worlds.simulated.simulated_world import SimulatedWorld
from tests.simulation.pipelines import PipelineJournal, job_of
from tests.simulation.test_pipeline_faults import bench, check, run

RETRY_S, STRUCK_S = 0.2, 0.5
STALL_S = 20 * RETRY_S  # how long it takes without the timer until a new term begins


def unresponsive(device: str, lasting: str = "1000 s") -> dict[str, Any]:
    """No message reaches or leaves the device, but its lease is renewed, so it is not lost."""
    return {"kind": "lose", "device": device, "at": f"{STRUCK_S} s", "share": 1.0, "lasting": lasting}


def excluded_devices(journal: PipelineJournal) -> list[str]:
    return [instant.node for instant in journal.instants("left out")]


@pytest.mark.parametrize("device", ["d1", "d2", "d3"])
def test_a_device_that_swallows_batches_is_excluded_within_the_timer(tmp_path: Path, device: str) -> None:
    result, journal = run(tmp_path / "run", [unresponsive(device)])
    check(result, journal)
    assert excluded_devices(journal) == [device]
    assert journal.instants("lost") == journal.instants("stalled") == []
    assert journal.instants("left out")[0].at < STRUCK_S + 13 * RETRY_S
    assert device not in journal.instants("partition")[-1].fields["order"]
    assert result.summary["time_s"] < STRUCK_S + STALL_S


def test_recovery_takes_twice_as_long_without_the_timer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with only the stall timeout."""
    timed, _ = run(tmp_path / "timed", [unresponsive("d2")])
    monkeypatch.setattr(BatchTimer, "silent_stages", lambda self, now: [])
    untimed, journal = run(tmp_path / "untimed", [unresponsive("d2")])
    check(untimed, journal)
    assert len(journal.instants("stalled")) == 1
    assert untimed.summary["time_s"] - STRUCK_S > 1.8 * (timed.summary["time_s"] - STRUCK_S)


def test_a_device_that_answers_again_gets_layers_again(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [unresponsive("d0", "4 s")])
    check(result, journal)
    assert excluded_devices(journal) == ["d0"]
    assert [instant.node for instant in journal.instants("answers again")] == ["d0"]
    assert journal.instants("partition")[-1].fields["order"][0] == "d0"


def hanging(device: str, lasting: str | None = None) -> dict[str, Any]:
    """Its computation stops; it answers everything that needs none, so it is neither lost nor silent."""
    fault = {"kind": "hang", "device": device, "at": f"{STRUCK_S} s"}
    return fault if lasting is None else {**fault, "lasting": lasting}


@pytest.mark.parametrize("device", ["d1", "d2", "d3"])
def test_a_stage_that_hangs_in_a_computation_is_excluded(tmp_path: Path, device: str) -> None:
    result, journal = run(tmp_path / "run", [hanging(device)])
    check(result, journal)
    assert excluded_devices(journal) == [device]
    assert journal.instants("left out")[0].fields["reason"] == "hangs in a computation"
    assert journal.instants("lost") == journal.instants("stalled") == []
    assert journal.instants("answers again") == [], "it does not say that it is idle"
    assert device not in journal.instants("partition")[-1].fields["order"]


def test_a_stage_that_continues_gets_layers_again(tmp_path: Path) -> None:
    result, journal = run(tmp_path / "run", [hanging("d0", "8 s")])
    check(result, journal)
    assert excluded_devices(journal) == ["d0"]
    (back,) = journal.instants("answers again")
    assert back.at >= STRUCK_S + 8.0
    assert journal.instants("partition")[-1].fields["order"][0] == "d0"


def test_no_device_is_excluded_if_all_are_silent(tmp_path: Path) -> None:
    """Then the coordinator's own link is at fault, and excluding all of them would lose their work."""
    result, journal = run(tmp_path / "run", [unresponsive("*", "3 s")])
    check(result, journal)
    assert excluded_devices(journal) == []
    assert journal.instants("rolled back") == []


@pytest.mark.parametrize(("pair", "out"), [(("d1", "d2"), "d2"), (("d0", "d1"), "d1"), (("d0", "d3"), "d3")])
def test_neighbours_that_cannot_reach_each_other_are_separated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], out: str
) -> None:
    """Both answer the coordinator, so no lease or connection shows it; the first stage sends the labels to the last."""
    _cut_between(monkeypatch, *pair)
    result, journal = run(tmp_path / "run", [])
    check(result, journal)
    assert excluded_devices(journal) == [out]
    assert f"cut off from {pair[0]}" in journal.instants("left out")[0].fields["reason"]
    assert journal.instants("stalled") == []
    assert result.summary["time_s"] < STRUCK_S + STALL_S


def test_a_message_that_was_lost_is_only_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cut_between(monkeypatch, "d1", "d2", until=STRUCK_S + 6 * RETRY_S)
    result, journal = run(tmp_path / "run", [])
    check(result, journal)
    assert len(journal.instants("overdue")) > 0
    assert excluded_devices(journal) == []
    assert len(journal.instants("partition")) == 1


def test_a_slow_device_is_not_excluded(tmp_path: Path) -> None:
    """It answers when asked; from then on its time counts as normal."""
    slow = {"kind": "slow", "device": "d1", "at": f"{STRUCK_S} s", "factor": 0.004, "lasting": "1000 s"}
    no_repartition = {"every": 0, "on_change": False, "join": False}
    result, journal = run(tmp_path / "run", [slow], pipeline={"adaptation": no_repartition})
    check(result, journal)
    committed = [instant.at for instant in journal.instants("committed")]
    longest = max(late - early for early, late in pairwise(committed))
    assert longest > 13 * RETRY_S, "as slow as one who is given up"
    assert len(journal.instants("overdue")) > 0
    assert excluded_devices(journal) == []
    assert len(journal.instants("partition")) == 1


@pytest.mark.parametrize("last_heard", [Fetch, Assign])
def test_a_device_that_falls_silent_between_batches_is_excluded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last_heard: type[Message]
) -> None:
    """While layers are distributed, or collected for a checkpoint."""
    deliver, struck = SimulatedWorld._deliver_message, list[float]()

    def swallow(self: SimulatedWorld, origin: Any, target: Any, incarnation: int, envelope: Any) -> None:
        if target.name == "d2" and isinstance(envelope.message, last_heard):
            struck.append(self.loop.time())
        if not struck or "d2" not in (origin.name, target.name):
            deliver(self, origin, target, incarnation, envelope)

    monkeypatch.setattr(SimulatedWorld, "_deliver_message", swallow)
    result, journal = run(tmp_path / "run", [], checkpoint=6)
    check(result, journal)
    assert excluded_devices(journal) == ["d2"]
    assert journal.instants("left out")[0].at < struck[0] + 16 * RETRY_S


def test_the_run_waits_for_layers_on_a_slow_link(tmp_path: Path) -> None:
    """Longer than for a silent device: a device asked again for layers in flight says so."""
    retry_s, narrow = 0.02, {"up": "20 kbit/s", "down": "20 kbit/s"}
    members = [{"name": f"d{index}", "flops": "100 kFLOP/s", "link": narrow} for index in range(3)]
    cuts = {"kind": "cuts", "after": [3, 4]}
    pipeline = {"batch": 8, "partition": cuts, "retry": f"{retry_s} s", "replication": "none"}
    job = job_of(members, pipeline=pipeline, stop={"rounds": 3}, evaluate=0, checkpoint=1)
    result = bench().simulate(job, tmp_path / "run")
    journal = PipelineJournal(tmp_path / "run")
    assert result.status == "done", result.reason
    assert max(span.end - span.start for span in journal.spans("fetch")) > 13 * retry_s
    assert excluded_devices(journal) == []
    assert len(journal.instants("partition")) == 1


def _cut_between(monkeypatch: pytest.MonkeyPatch, first: str, second: str, until: float = 1000.0) -> None:
    """From some time on, no message passes between these two devices."""
    deliver = SimulatedWorld._deliver_message

    def cut(self: SimulatedWorld, origin: Any, target: Any, incarnation: int, envelope: Any) -> None:
        if {origin.name, target.name} != {first, second} or not STRUCK_S < self.loop.time() < until:
            deliver(self, origin, target, incarnation, envelope)

    monkeypatch.setattr(SimulatedWorld, "_deliver_message", cut)
