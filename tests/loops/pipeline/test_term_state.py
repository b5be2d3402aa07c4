"""Batches that had passed a device before it died are applied by the stages before it, not computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import potluck
from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.pipeline_planner import PipelinePlan
from potluck.loops.pipeline.term_state import TermProgress
from tests.simulation.pipelines import PipelineJournal, job_of
from tests.simulation.test_pipeline_faults import BATCH, BATCHES, CUTS, bench, check, crash


def progress_of(applied: tuple[int, ...], copied: tuple[int, ...]) -> TermProgress:
    """Progress of four stages of two layers: the last applied batch and the newest copy of each."""
    plan = PipelinePlan((2, 4, 6), ("a", "b", "c", "d"), 8, (4, 3, 2, 1), 1.0, 1, ("b", "c", "d", "a"), 4)
    progress = TermProgress(plan, 0, 0)
    for device, version, copy, layers in zip(plan.order, applied, copied, plan.stage_layers, strict=True):
        progress.record_report(device, Report(1, version))
        for known in range(1, copy + 1):
            progress.record_copy(Kept(1, layers[0], layers[-1], known))
    return progress


def test_no_stage_is_waited_for_while_all_are_alive() -> None:
    assert progress_of((5, 6, 7, 8), (5, 6, 7, 8)).unfinished_stages() == ()


@pytest.mark.parametrize(
    ("dead", "copied", "expected"),
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
    dead: str, copied: tuple[int, ...], expected: list[str]
) -> None:
    progress = progress_of((5, 6, 7, 8), copied)
    for device in dead:
        progress.mark_lost(device)
    assert list(progress.unfinished_stages()) == expected


def test_batches_that_cannot_arrive_are_not_awaited() -> None:
    progress = progress_of((5, 6, 6, 8), (5, 6, 6, 8))
    progress.mark_lost("d")
    progress.mark_stuck("a")
    assert list(progress.unfinished_stages()) == ["a", "b", "c"], "to `a` it comes from `b`, which lives"
    progress.mark_stuck("c")
    assert list(progress.unfinished_stages()) == ["a"], "c has applied 6, b as well"
    progress.record_report("a", Report(1, 6))
    assert list(progress.unfinished_stages()) == []


def run(folder: Path, faults: list[dict[str, Any]]) -> tuple[potluck.Result, PipelineJournal]:
    """Run a pipeline so slow that a death is noticed within a batch."""
    devices = [{"name": f"d{index}", "flops": "5 kFLOP/s", "link": "lan"} for index in range(4)]
    job = job_of(
        devices, fleet={"faults": faults, "lease": "1 s"}, stop={"rounds": BATCHES},
        pipeline={"batch": BATCH, "partition": CUTS},
    )  # fmt: skip
    return bench().simulate(job, folder), PipelineJournal(folder)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_batch_that_had_passed_the_dead_is_committed_in_the_old_layout(tmp_path: Path, fraction: float) -> None:
    _, calm = run(tmp_path / "calm", [])
    tenth, next_one = (instant.at for instant in calm.instants("committed")[10:12])
    result, journal = run(tmp_path / "run", [crash("d3", tenth + fraction * (next_one - tenth))])
    check(result, journal)
    (lost,), (first, second) = journal.instants("lost"), journal.instants("partition")
    late = [instant for instant in journal.instants("committed") if lost.at < instant.at < second.at]
    assert late, "what was on its way back was thrown away"
    assert {instant.fields["term"] for instant in late} == {first.fields["term"]}
    assert journal.instants("rolled back") == []
    assert second.fields["version"] == lost.fields["round"] + len(late)
