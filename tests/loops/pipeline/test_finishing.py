"""What had passed a device before it died is applied by those before it, and not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.term_state import TermProgress
from tests.simulation.pipelines import Story, job_of
from tests.simulation.test_pipeline_faults import BATCH, BATCHES, CUTS, bench, check, crash


def ledger(applied: tuple[int, ...], kept: tuple[int, ...]) -> TermProgress:
    """Four stages of two layers: how far each is, and the newest copy of each."""
    plan = PipelinePlan((2, 4, 6), ("a", "b", "c", "d"), 8, (4, 3, 2, 1), 1.0, 1, ("b", "c", "d", "a"))
    found = TermProgress(plan, 0, 0)
    for device, version, copy, layers in zip(plan.order, applied, kept, plan.stage_layers, strict=True):
        found.record_report(device, Report(1, version))
        for known in range(1, copy + 1):
            found.record_copy(Kept(1, layers[0], layers[-1], known))
    return found


def test_no_stage_is_waited_for_while_all_are_alive() -> None:
    assert ledger((5, 6, 7, 8), (5, 6, 7, 8)).unfinished_stages() == ()


@pytest.mark.parametrize(
    ("dead", "kept", "expected"),
    [
        ("d", (5, 6, 7, 8), ["a", "b", "c"]),
        ("d", (5, 6, 7, 6), ["a"]),
        ("c", (5, 6, 7, 8), ["a", "b"]),
        ("b", (5, 6, 7, 8), ["a"]),
        ("b", (5, 5, 7, 8), []),
        ("a", (5, 6, 7, 8), []),
        ("bd", (5, 6, 7, 8), ["a"]),
        ("dc", (5, 6, 7, 8), []),  # the copies of c died with d
    ],
)
def test_stages_before_a_dead_one_go_as_far_as_its_copies_do(
    dead: str, kept: tuple[int, ...], expected: list[str]
) -> None:
    found = ledger((5, 6, 7, 8), kept)
    for device in dead:
        found.mark_lost(device)
    assert list(found.unfinished_stages()) == expected


def test_what_cannot_arrive_is_not_waited_for() -> None:
    found = ledger((5, 6, 6, 8), (5, 6, 6, 8))
    found.mark_lost("d")
    found.mark_stuck("a")
    assert list(found.unfinished_stages()) == ["a", "b", "c"], "to `a` it comes from `b`, which lives"
    found.mark_stuck("c")
    assert list(found.unfinished_stages()) == ["a"], "c has applied 6, b as well"
    found.record_report("a", Report(1, 6))
    assert list(found.unfinished_stages()) == []


def run(folder: Path, faults: list[dict[str, Any]]) -> tuple[potluck.Result, Story]:
    """A pipeline so slow that a death is noticed within a batch."""
    devices = [{"name": f"d{place}", "flops": "5 kFLOP/s", "link": "lan"} for place in range(4)]
    job = job_of(
        devices, fleet={"faults": faults, "lease": "1 s"}, stop={"rounds": BATCHES},
        pipeline={"batch": BATCH, "partition": CUTS},
    )  # fmt: skip
    return bench().simulate(job, folder), Story(folder)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_batch_that_had_passed_the_dead_is_committed_in_the_old_layout(tmp_path: Path, share: float) -> None:
    _, calm = run(tmp_path / "calm", [])
    tenth, next_one = (note.at for note in calm.instants("committed")[10:12])
    result, story = run(tmp_path / "run", [crash("d3", tenth + share * (next_one - tenth))])
    check(result, story)
    (lost,), (first, second) = story.instants("lost"), story.instants("partition")
    late = [note for note in story.instants("committed") if lost.at < note.at < second.at]
    assert late, "what was on its way back was thrown away"
    assert {note.fields["term"] for note in late} == {first.fields["term"]}
    assert story.instants("rolled back") == []
    assert second.fields["version"] == lost.fields["round"] + len(late)
