"""A stage's course keeps to the schedule, and can be made to end early."""

from __future__ import annotations

import pytest

from potluck.loops.pipeline.courses import Course, Flow, GPipe, OneFOneB, Single, Waves
from potluck.planning.schedule import Durations, gpipe, one_f_one_b


def walk(course: Course) -> list[tuple[str, int]]:
    done = []
    while (task := course.due()) is not None:
        done.append((str(task[0]), task[1]))
        course.done(task[0])
    return done


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("batches", [1, 3, 7])
def test_flow_is_the_1f1b_schedule_of_its_stage(stages: int, batches: int) -> None:
    for stage in range(stages):
        schedule = [(task.kind, task.batch) for task in one_f_one_b(stages, batches, start=2) if task.stage == stage]
        assert walk(Flow(stages - stage, 2, 2 + batches)) == schedule


@pytest.mark.parametrize("parts", [1, 3])
def test_waves_are_the_gpipe_schedule_of_a_stage(parts: int) -> None:
    schedule = [(task.kind, task.batch) for task in gpipe(2, 3, parts) if task.stage == 1]
    assert walk(Waves(parts, 0, 3)) == schedule
    assert [part for kind, part in schedule if Waves(parts, 0, 3).steps(part) and kind == "backward"] == [
        batch * parts for batch in range(3)
    ]


def test_closing_lets_what_was_begun_come_back() -> None:
    course = Flow(3, 0, 100)
    for _ in range(5):  # three forwards, a backward, a forward
        task = course.due()
        assert task is not None
        course.done(task[0])
    assert course.untouched() == 4
    course.close(course.untouched())
    assert walk(course) == [("backward", 1), ("backward", 2), ("backward", 3)]


def test_a_wave_under_way_is_finished() -> None:
    course = Waves(2, 5, 9)
    assert course.untouched() == 5
    course.done("forward")
    assert course.untouched() == 6
    course.close(6)
    assert walk(course) == [("forward", 11), ("backward", 11), ("backward", 10)]


def test_windows_by_schedule() -> None:
    slow_links = Durations([1.0, 1.0], [1.0, 1.0], [2.0], [2.0])
    assert OneFOneB().windows(slow_links) == (2, 1)
    assert OneFOneB(fill="filling").windows(slow_links) == (4, 1)
    assert GPipe(micro_batches=3).parts == 3
    assert Single.most_stages == 1
