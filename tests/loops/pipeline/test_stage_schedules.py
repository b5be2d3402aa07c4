"""A stage follows its schedule and can be closed early."""

from __future__ import annotations

import pytest

from potluck.loops.pipeline.stage_schedules import (
    GPipeSchedule,
    GPipeStageSchedule,
    OneFOneBSchedule,
    OneFOneBStageSchedule,
    SingleDeviceSchedule,
    StageSchedule,
)
from potluck.planning.schedule import StageDurations, gpipe_schedule, one_f_one_b_schedule


def run_schedule(schedule: StageSchedule) -> list[tuple[str, int]]:
    done = []
    while (task := schedule.next_task()) is not None:
        done.append((str(task[0]), task[1]))
        schedule.complete_task(task[0])
    return done


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("batches", [1, 3, 7])
def test_a_stage_follows_the_1f1b_schedule(stages: int, batches: int) -> None:
    for stage in range(stages):
        schedule = [
            (task.kind, task.batch) for task in one_f_one_b_schedule(stages, batches, start=2) if task.stage == stage
        ]
        assert run_schedule(OneFOneBStageSchedule(stages - stage, 2, 2 + batches)) == schedule


@pytest.mark.parametrize("parts", [1, 3])
def test_a_stage_follows_the_gpipe_schedule(parts: int) -> None:
    schedule = [(task.kind, task.batch) for task in gpipe_schedule(2, 3, parts) if task.stage == 1]
    assert run_schedule(GPipeStageSchedule(parts, 0, 3)) == schedule
    assert [
        part for kind, part in schedule if GPipeStageSchedule(parts, 0, 3).updates_after(part) and kind == "backward"
    ] == [batch * parts for batch in range(3)]


def test_closing_lets_started_batches_return() -> None:
    schedule = OneFOneBStageSchedule(3, 0, 100)
    for _ in range(5):  # three forwards, a backward, a forward
        task = schedule.next_task()
        assert task is not None
        schedule.complete_task(task[0])
    assert schedule.first_unstarted_batch() == 4
    schedule.end_before(schedule.first_unstarted_batch())
    assert run_schedule(schedule) == [("backward", 1), ("backward", 2), ("backward", 3)]


def test_a_started_batch_of_micro_batches_is_finished() -> None:
    schedule = OneFOneBStageSchedule(2, 5, 9, micro_batches=2)
    assert schedule.first_unstarted_batch() == 5
    schedule.complete_task("forward")
    assert schedule.first_unstarted_batch() == 6
    schedule.end_before(6)
    assert schedule.end_batch == 6
    assert run_schedule(schedule) == [("forward", 11), ("backward", 10), ("backward", 11)]
    assert [schedule.updates_after(micro_batch) for micro_batch in (10, 11)] == [False, True]


@pytest.mark.parametrize(("window", "batches"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_batches_that_a_window_of_micro_batches_touches(window: int, batches: int) -> None:
    assert OneFOneBSchedule(micro_batches=2).window_batches(window) == batches
    assert OneFOneBSchedule().window_batches(window) == window


def test_a_started_gpipe_batch_is_finished() -> None:
    schedule = GPipeStageSchedule(2, 5, 9)
    assert schedule.first_unstarted_batch() == 5
    schedule.complete_task("forward")
    assert schedule.first_unstarted_batch() == 6
    schedule.end_before(6)
    assert run_schedule(schedule) == [("forward", 11), ("backward", 11), ("backward", 10)]


def test_windows_by_schedule() -> None:
    slow_links = StageDurations([1.0, 1.0], [1.0, 1.0], [2.0], [2.0])
    assert OneFOneBSchedule().stage_windows(slow_links) == (2, 1)
    assert OneFOneBSchedule(fill="filling").stage_windows(slow_links) == (4, 1)
    assert OneFOneBSchedule(fill="filling", micro_batches=2).stage_windows(slow_links) == (4, 1)
    assert OneFOneBSchedule(micro_batches=2).batch_period_s(slow_links, (4, 1)) == 4.0
    assert GPipeSchedule(micro_batches=3).micro_batch_count == 3
    assert SingleDeviceSchedule.most_stages == 1
