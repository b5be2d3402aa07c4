"""What had passed a device before it died is applied by those before it, and not done again."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.loops.pipeline.ledger import Ledger
from potluck.loops.pipeline.messages import Kept, Report
from potluck.loops.pipeline.planner import Plan
from tests.simulation.test_pipeline_faults import check, crash, run


def ledger(applied: tuple[int, ...], kept: tuple[int, ...]) -> Ledger:
    """Four stages of two layers: how far each is, and the newest copy of each."""
    plan = Plan((2, 4, 6), ("a", "b", "c", "d"), 8, (4, 3, 2, 1), 1.0, 1, ("b", "c", "d", "a"))
    found = Ledger(plan, 0, 0)
    for device, version, copy, layers in zip(plan.order, applied, kept, plan.stages, strict=True):
        found.report(device, Report(1, version))
        for known in range(1, copy + 1):
            found.kept(Kept(1, layers[0], layers[-1], known))
    return found


def test_nobody_is_waited_for_while_all_live() -> None:
    assert ledger((5, 6, 7, 8), (5, 6, 7, 8)).unfinished() == ()


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
def test_stages_before_the_dead_go_as_far_as_its_copies_do(
    dead: str, kept: tuple[int, ...], expected: list[str]
) -> None:
    found = ledger((5, 6, 7, 8), kept)
    for device in dead:
        found.lose(device)
    assert list(found.unfinished()) == expected


def test_what_does_not_come_any_more_is_not_waited_for() -> None:
    found = ledger((5, 6, 6, 8), (5, 6, 6, 8))
    found.lose("d")
    found.stuck("a")
    assert list(found.unfinished()) == ["a", "b", "c"], "to `a` it comes from `b`, which lives"
    found.stuck("c")
    assert list(found.unfinished()) == ["a"], "c has applied 6, b as well"
    found.report("a", Report(1, 6))
    assert list(found.unfinished()) == []


@pytest.mark.parametrize("at", [0.42, 0.45, 0.48, 0.51])
def test_a_batch_that_had_passed_the_dead_is_committed_in_the_old_layout(tmp_path: Path, at: float) -> None:
    result, story = run(tmp_path / "run", [crash("d3", at)])
    check(result, story)
    (lost,), (first, second) = story.instants("lost"), story.instants("partition")
    late = [note for note in story.instants("committed") if lost.at < note.at < second.at]
    assert late, "what was on its way back was thrown away"
    assert {note.fields["term"] for note in late} == {first.fields["term"]}
    assert story.instants("rolled back") == []
    assert second.fields["version"] == lost.fields["round"] + len(late)
