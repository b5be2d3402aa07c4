"""Plans for one turn after another: nearly as good as a long search, cheap, and kept while costs hardly change."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace

import msgspec
import pytest

from potluck.planning.segments import DuplexPlan, TransferTiming, WorkerCosts, forecast_duplex, plan_duplex_turn
from potluck.planning.segments.cut_search import CutSearch
from potluck.planning.segments.duplex_schedule import DuplexSchedule

TIMING = TransferTiming(overhead=0.01, latency=0.02)


def random_worker(seed: int, layers: int = 40) -> WorkerCosts:
    """Three seconds of computation, and transfers of a third to eight times that."""
    rng = random.Random(seed)
    compute = [rng.lognormvariate(0.0, 0.7) for _ in range(layers)]
    nbytes = [(i + 1) ** rng.random() * rng.lognormvariate(0.0, 1.0) for i in range(layers)]
    ratio = 10 ** rng.uniform(-0.5, 0.9)
    forward = [each / sum(compute) for each in compute]
    transfer = [1.5 * ratio * each / sum(nbytes) for each in nbytes]
    return WorkerCosts(forward, [2 * each for each in forward], transfer, [1.3 * each for each in transfer])


def plan_turns(worker: WorkerCosts, turns: int, plan: DuplexPlan | None = None) -> DuplexPlan:
    for _ in range(turns):
        plan = plan_duplex_turn(worker, TIMING, plan)
    assert plan is not None
    return plan


def scaled(worker: WorkerCosts, factor: float) -> WorkerCosts:
    return replace(worker, pull=[factor * each for each in worker.pull], push=[factor * each for each in worker.push])


def test_plans_are_nearly_as_good_as_a_long_search() -> None:
    gaps: dict[int, list[float]] = {1: [], 5: []}
    for seed in range(20):
        worker = random_worker(seed, 8 + 2 * seed)
        best = forecast_duplex([worker], TIMING.overhead, TIMING.latency).iteration
        for turns, found in gaps.items():
            plan = plan_turns(worker, turns)
            found.append(min(plan.iteration_s, plan.barrier_s) / best - 1)
    assert statistics.mean(gaps[1]) < 0.01
    assert statistics.mean(gaps[5]) < 0.003
    assert max(gaps[1]) < 0.05
    assert max(gaps[5]) < 0.02


def test_the_plan_takes_what_it_says() -> None:
    for seed in range(5):
        worker = random_worker(seed)
        plan = plan_turns(worker, 3)
        assert plan.iteration_s == DuplexSchedule([worker], TIMING).iteration_s(plan.cuts)
        assert plan.barrier_s == pytest.approx(forecast_duplex([worker], TIMING.overhead, TIMING.latency).barrier)


def test_the_effort_of_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[CutSearch] = []
    original = CutSearch.__init__

    def remember(self: CutSearch, schedule: DuplexSchedule) -> None:
        original(self, schedule)
        searches.append(self)

    monkeypatch.setattr(CutSearch, "__init__", remember)
    for seed in range(8):
        plan_turns(random_worker(seed, 150), 4)
    assert max(search.effort for search in searches) < 1_000


@pytest.mark.alone
@pytest.mark.wall_clock
def test_a_plan_takes_a_millisecond() -> None:
    durations = []
    for seed in range(10):
        worker, plan = random_worker(seed, 60), None
        for _ in range(5):
            start = time.perf_counter()
            plan = plan_duplex_turn(worker, TIMING, plan)
            durations.append(time.perf_counter() - start)
    assert statistics.median(durations) < 1e-3


def test_a_settled_plan_is_kept_while_costs_are_about_the_same() -> None:
    worker = random_worker(3, 12)
    plan = plan_turns(worker, 200)
    assert plan.is_settled
    assert plan_duplex_turn(scaled(worker, 1.03), TIMING, plan) is plan
    changed = plan_duplex_turn(scaled(worker, 0.1), TIMING, plan)
    assert changed is not plan
    assert not changed.is_settled


def test_a_change_to_a_tenth_is_planned_for_at_once() -> None:
    worker = random_worker(4)
    slow = scaled(worker, 10.0)
    best = forecast_duplex([slow], TIMING.overhead, TIMING.latency).iteration
    plan = plan_duplex_turn(slow, TIMING, plan_turns(worker, 10))
    assert min(plan.iteration_s, plan.barrier_s) <= 1.03 * best


def test_a_plan_for_more_layers_is_not_continued() -> None:
    plan = plan_turns(random_worker(1, 40), 3)
    assert all(cut < 9 for cut in plan_duplex_turn(random_worker(1, 10), TIMING, plan).cuts)


def test_a_saved_plan_continues_as_if_it_had_not_been_saved() -> None:
    worker = random_worker(2)
    plan = plan_turns(worker, 2)
    saved = msgspec.json.decode(msgspec.json.encode(plan), type=DuplexPlan)
    assert plan_turns(worker, 5, saved) == plan_turns(worker, 5, plan)


def test_where_overlap_does_not_pay_the_plan_says_so() -> None:
    """One layer: nothing can overlap, and both ways take the same time."""
    plan = plan_turns(WorkerCosts([1.0], [2.0], [3.0], [3.0]), 1)
    assert plan.cuts == ()
    assert not plan.overlaps
