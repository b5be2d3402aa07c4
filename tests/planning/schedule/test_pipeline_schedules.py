"""Schedules as tables, the stage rules as an invariant, and how close a simulated pipeline comes to its bound."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from potluck.planning.partition import DeviceSpecs, LayerSpecs, plan_partition
from potluck.planning.schedule import (
    StageDurations,
    StageProgress,
    StageTask,
    backward_ready,
    due_task,
    filling_windows,
    forward_ready,
    gpipe_schedule,
    one_f_one_b_schedule,
    published_windows,
    simulate_pipeline,
    steady_period,
)
from tests.planning.schedule_table import format_schedule
from tests.planning.weight_versions import version_used, versions_held

TABLES = {
    1: """
clock  stage 0
    0  F0
    1  B0
    2  F1
    3  B1
    4  F2
    5  B2
    6  F3
    7  B3
""",
    2: """
clock  stage 0  stage 1
    0  F0
    1  F1       F0
    2           B0
    3  B0       F1
    4  F2       B1
    5  B1       F2
    6  F3       B2
    7  B2       F3
    8           B3
    9  B3
""",
    3: """
clock  stage 0  stage 1  stage 2
    0  F0
    1  F1       F0
    2  F2       F1       F0
    3                    B0
    4           B0       F1
    5  B0       F2       B1
    6  F3       B1       F2
    7  B1       F3       B2
    8           B2       F3
    9  B2                B3
   10           B3
   11  B3
""",
    4: """
clock  stage 0  stage 1  stage 2  stage 3
    0  F0
    1  F1       F0
    2  F2       F1       F0
    3  F3       F2       F1       F0
    4                             B0
    5                    B0       F1
    6           B0       F2       B1
    7  B0       F3       B1       F2
    8           B1       F3       B2
    9  B1                B2       F3
   10           B2                B3
   11  B2                B3
   12           B3
   13  B3
""",
}

GPIPE = """
clock  stage 0  stage 1  stage 2
    0  F0
    1  F1       F0
    2           F1       F0
    3                    F1
    4                    B1
    5           B1       B0
    6  B1       B0
    7  B0
    8  F2
    9  F3       F2
   10           F3       F2
   11                    F3
   12                    B3
   13           B3       B2
   14  B3       B2
   15  B2
"""


@pytest.mark.parametrize("stages", TABLES)
def test_one_forward_one_backward_as_a_table(stages: int) -> None:
    assert format_schedule(one_f_one_b_schedule(stages, 4)) == TABLES[stages].strip("\n")


def test_gpipe_as_a_table() -> None:
    assert format_schedule(gpipe_schedule(3, batches=2, micro_batches=2)) == GPIPE.strip("\n")
    taking_turns = [f"{task.kind[0]}{task.stage}" for task in gpipe_schedule(2, batches=2)]
    assert taking_turns == ["f0", "f1", "b1", "b0"] * 2


def test_fewer_batches_than_stages_and_none_at_all() -> None:
    assert Counter(one_f_one_b_schedule(5, 2)) == Counter(gpipe_schedule(5, 2))
    assert list(one_f_one_b_schedule(3, 0)) == list(gpipe_schedule(3, 0)) == []
    assert format_schedule([]) == "clock"


def trace(stages: int, batches: int, start: int, windows: tuple[int, ...]) -> list[StageTask]:
    return list(one_f_one_b_schedule(stages, batches, start=start, windows=windows))


@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize(("batches", "start"), [(1, 0), (5, 3), (40, 7)])
def test_stage_rules_hold_at_every_task_and_each_task_runs_once_after_its_input(
    stages: int, batches: int, start: int
) -> None:
    forward, backward = [start - 1] * stages, [start - 1] * stages
    for stage, kind, batch in trace(stages, batches, start, published_windows(stages)):
        f, b, w = forward[stage], backward[stage], stages - stage
        if kind == "forward":
            assert f == batch - 1
            assert batch - start < w or b == batch - w
            assert stage == 0 or forward[stage - 1] >= batch
            forward[stage] = batch
        else:
            assert b == batch - 1
            assert f == batch + w - 1 or f == start + batches - 1
            assert batch <= (forward[stage] if stage == stages - 1 else backward[stage + 1])
            backward[stage] = batch
    assert forward == backward == [start + batches - 1] * stages


def test_the_last_stage_runs_forward_and_backward_together() -> None:
    last = [(kind, batch) for stage, kind, batch in one_f_one_b_schedule(4, 10) if stage == 3]
    assert last == [(kind, batch) for batch in range(10) for kind in ("forward", "backward")]


def test_at_most_one_kind_of_task_is_allowed_at_a_time() -> None:
    for window in range(1, 5):
        for forward in range(-1, 12):
            for backward in range(-1, forward + 1):
                draining = forward == 11
                ahead = forward_ready(forward + 1, forward=forward, backward=backward, window=window)
                back = backward_ready(
                    backward + 1, forward=forward, backward=backward, window=window, draining=draining
                )
                assert draining or not (ahead and back)


def test_progress_advances_through_the_due_tasks() -> None:
    at, tasks = StageProgress.at_start(window=2, start=5, end=8), []
    while task := due_task(at):
        tasks.append(task)
        at = at.after_task(task[0])
    assert [f"{kind[0]}{batch}" for kind, batch in tasks] == ["f5", "f6", "b5", "f7", "b6", "b7"]


def test_a_backward_never_precedes_its_forward_even_while_draining() -> None:
    assert not backward_ready(3, forward=2, backward=2, window=2, draining=True)


@pytest.mark.parametrize("vertical", [True, False])
@pytest.mark.parametrize("windows", [(1,), (2, 1), (3, 2, 1), (4, 3, 2, 1), (7, 4, 3, 1)])
def test_the_version_formula_matches_the_replayed_schedule(windows: tuple[int, ...], vertical: bool) -> None:
    """Replays the schedule, counts updates, and keeps only the versions that each stage still needs."""
    updates = [0] * len(windows)
    carried: dict[int, int] = {}
    most = [0] * len(windows)
    pending: list[dict[int, int]] = [{} for _ in windows]
    for stage, kind, batch in trace(len(windows), 40, 10, windows):
        if kind == "forward":
            carried.setdefault(batch, updates[0])
            pending[stage][batch] = carried[batch] if vertical else updates[stage]
            version = version_used(batch, stage, windows, start=10, vertical=vertical)
            assert version == pending[stage][batch] <= updates[stage]
        oldest = min(pending[stage].values())
        most[stage] = max(most[stage], updates[stage] - oldest + 1)
        if kind == "backward":
            del pending[stage][batch]
            updates[stage] += 1
    assert most == [versions_held(stage, windows, vertical=vertical) for stage in range(len(windows))]


def some_durations(rng: random.Random) -> StageDurations:
    stages, link_fraction = rng.randint(1, 5), rng.choice([0, 0.1, 0.5, 2])
    links = range(stages - 1)
    return StageDurations(
        [rng.uniform(0.1, 1) for _ in range(stages)],
        [rng.uniform(0.1, 2) for _ in range(stages)],
        [rng.uniform(0, link_fraction) for _ in links],
        [rng.uniform(0, link_fraction) for _ in links],
    )


def run_of(durations: StageDurations, windows: tuple[int, ...], batches: int = 200) -> float:
    return simulate_pipeline(durations, batches, windows=windows).period


def test_the_simulated_period_matches_the_formula() -> None:
    rng = random.Random("formula")
    for _ in range(40):
        durations = some_durations(rng)
        for windows in (published_windows(durations.stages), filling_windows(durations)):
            assert run_of(durations, windows) == pytest.approx(steady_period(durations, windows), rel=0.02)


def test_windows_that_fill_the_pipeline_reach_the_bound_and_none_smaller_does() -> None:
    rng = random.Random("fill")
    for _ in range(200):
        durations = some_durations(rng)
        windows = filling_windows(durations)
        assert steady_period(durations, windows) == pytest.approx(durations.min_period())
        if windows[0] > 1 and windows[0] > windows[1]:
            fewer = (windows[0] - 1, *windows[1:])
            assert steady_period(durations, fewer) > durations.min_period() * (1 + 1e-9)


def test_windows_with_a_limit_are_the_best_within_it() -> None:
    rng = random.Random("limit")
    for _ in range(100):
        durations = some_durations(rng)
        free = filling_windows(durations)
        most = rng.randint(1, free[0])
        windows = filling_windows(durations, max_in_flight=most)
        assert windows[0] <= most
        assert windows == tuple(sorted(windows, reverse=True))
        more = filling_windows(durations, max_in_flight=most + 1)
        assert steady_period(durations, more) <= steady_period(durations, windows) * (1 + 1e-9)
        if durations.stages == 2:  # all there are
            periods = [steady_period(durations, (first, 1)) for first in range(1, most + 1)]
            assert steady_period(durations, windows) == pytest.approx(min(periods))
    assert filling_windows(durations, max_in_flight=free[0]) == free


@pytest.mark.parametrize("stages", range(1, 7))
@pytest.mark.parametrize("link_fraction", [0, 0.01, 0.025])
def test_balanced_stages_reach_the_bound_with_the_published_windows_on_fast_links(
    stages: int, link_fraction: float
) -> None:
    links = [link_fraction] * (stages - 1)
    timeline = simulate_pipeline(StageDurations([0.35] * stages, [0.65] * stages, links, links), 200)
    assert timeline.throughput >= 0.95


@pytest.mark.parametrize("stages", range(2, 6))
@pytest.mark.parametrize("link_fraction", [0.3, 1.0])
def test_slow_links_starve_the_published_windows_but_not_the_filling_ones(stages: int, link_fraction: float) -> None:
    links = [link_fraction] * (stages - 1)
    durations = StageDurations([0.35] * stages, [0.65] * stages, links, links)
    assert run_of(durations, published_windows(stages)) == pytest.approx(
        1 + 2 * link_fraction * (stages - 1) / stages, rel=0.02
    )
    assert run_of(durations, filling_windows(durations)) == pytest.approx(1, rel=0.01)


def test_a_partition_over_uneven_devices_runs_at_its_bound() -> None:
    layers = LayerSpecs(times=[1] * 210, outputs=[1] * 210)
    plan = plan_partition(layers, DeviceSpecs(capacities=[1, 1, 10], bandwidth=2.0, duplex=True))
    forward = [seconds / 3 for seconds in plan.stage_times]
    backward = [seconds * 2 / 3 for seconds in plan.stage_times]
    timeline = simulate_pipeline(StageDurations(forward, backward, plan.transfer_times, plan.transfer_times), 200)
    assert timeline.throughput >= 0.95 * plan.throughput
    busy = [sum(bar.end - bar.begin for bar in stage) for stage in timeline.bars]
    assert min(busy) > 0.95 * timeline.makespan


def test_a_link_that_does_one_direction_at_a_time_is_shared() -> None:
    durations = StageDurations([0.1] * 2, [0.1] * 2, [1], [1])
    both = simulate_pipeline(durations, 200, windows=(12, 1))
    one = simulate_pipeline(durations, 200, windows=(12, 1), duplex=False)
    assert both.period == pytest.approx(1, rel=0.02)
    assert one.period == pytest.approx(2, rel=0.02)


def test_gpipe_pays_for_its_flush() -> None:
    """M parts over N stages take M + N − 1 slots instead of M."""
    timeline = simulate_pipeline(StageDurations([1] * 4, [1] * 4, [0] * 3, [0] * 3), 50, "gpipe", micro_batches=8)
    assert timeline.makespan == 50 * 2 * (8 + 4 - 1)
    assert timeline.throughput == pytest.approx(8 / 22, rel=0.05)


def test_bars_of_a_stage_never_overlap_and_cover_each_task_once() -> None:
    rng = random.Random("bars")
    for _ in range(30):
        durations = some_durations(rng)
        timeline = simulate_pipeline(durations, 20, duplex=rng.random() < 0.5)
        for bars in timeline.bars:
            assert all(one.end <= other.begin for one, other in pairwise(bars))
            assert len({(bar.kind, bar.batch) for bar in bars}) == len(bars) == 40
