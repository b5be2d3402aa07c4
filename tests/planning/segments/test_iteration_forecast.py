"""The duplex forecast: its bounds, its gain, and cases worked by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import UserError
from potluck.planning.segments import WorkerCosts, WorkerCuts, barrier_iteration_s, forecast_duplex
from potluck.planning.segments.duplex_schedule import DuplexSchedule, TransferTiming
from potluck.planning.segments.iteration_forecast import max_min_rates, share_server_link
from tests.planning.duplex_simulation import simulate_duplex

seconds = st.floats(0.0, 10.0, allow_subnormal=False)


def worker_lists(most: int = 3) -> st.SearchStrategy[list[WorkerCosts]]:
    def workers_of(layers: int) -> st.SearchStrategy[list[WorkerCosts]]:
        row = st.lists(seconds, min_size=layers, max_size=layers)
        return st.lists(st.builds(WorkerCosts, row, row, row, row), min_size=1, max_size=most)

    return st.integers(1, 8).flatmap(workers_of)


def synthetic(layers: int, ratio: float, seed: int) -> WorkerCosts:
    """Three seconds of computation, one forward and two backward; `ratio` times that of communication.

    As in real networks most parameters are near the output.
    """
    rng = random.Random(seed)
    compute = [rng.lognormvariate(0.0, 0.7) for _ in range(layers)]
    parameters = [(i + 1) * rng.lognormvariate(0.0, 0.7) for i in range(layers)]
    forward = [c / sum(compute) for c in compute]
    transferring = [1.5 * ratio * p / sum(parameters) for p in parameters]
    return WorkerCosts(forward, [2 * f for f in forward], transferring, transferring)


@settings(max_examples=60, deadline=None)
@given(worker_lists(), seconds, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_bounds_hold(workers: list[WorkerCosts], overhead: float, latency: float, merge: float) -> None:
    forecast = forecast_duplex(workers, overhead, latency, merge)
    bound = max(max(sum(w.forward) + sum(w.backward), sum(w.pull) + overhead, sum(w.push) + overhead) for w in workers)
    loop = max(sum(w.forward) + sum(w.backward) + w.pull[0] + w.push[0] for w in workers)
    assert forecast.iteration >= bound * (1 - 1e-9)
    assert forecast.iteration >= (loop + 2 * overhead + 2 * latency + merge) * (1 - 1e-9)
    assert forecast.iteration <= forecast.barrier
    assert math.isclose(forecast.barrier, barrier_iteration_s(workers, overhead, "optimal", latency, merge))


@settings(max_examples=40, deadline=None)
@given(worker_lists(), seconds)
def test_a_forecast_is_the_period_of_its_own_cuts(workers: list[WorkerCosts], overhead: float) -> None:
    forecast = forecast_duplex(workers, overhead)
    if forecast.overlaps:
        period_s = DuplexSchedule(workers, TransferTiming(overhead)).iteration_s(forecast.cuts[0].pull)
        assert math.isclose(period_s, forecast.iteration, rel_tol=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_the_period_equals_that_of_an_event_simulation(seed: int) -> None:
    rng = random.Random(seed)
    layers, count = rng.randint(1, 9), rng.randint(1, 3)
    workers = [
        WorkerCosts(*([rng.lognormvariate(0, 1) for _ in range(layers)] for _ in range(4))) for _ in range(count)
    ]
    cuts = tuple(sorted(rng.sample(range(layers - 1), rng.randint(0, layers - 1))))
    timing = TransferTiming(rng.random(), rng.random(), rng.random())
    period_s = DuplexSchedule(workers, timing).iteration_s(cuts)
    ends = simulate_duplex(workers, [WorkerCuts(cuts, cuts)] * count, timing, 73)
    assert (ends[-1] - ends[-13]) / 12 == pytest.approx(period_s, rel=1e-6)


def test_a_forecast_waits_until_all_workers_are_in_step() -> None:
    """The last worker to finish is one and then the other; early iterations of 26.5 s look steady and are not."""
    one = WorkerCosts([10.1, 1.9], [5.8, 5.2], [3.0, 1.9], [0.5, 1.3])
    other = WorkerCosts([1.9, 10.2], [2.4, 1.5], [2.0, 10.6], [0.5, 0.4])
    assert DuplexSchedule([one, other], TransferTiming(0.0)).iteration_s((0,)) == pytest.approx(26.6)


@pytest.mark.parametrize(("ratio", "gain"), [(1.0, 0.15), (1.5, 0.30), (2.0, 0.36), (4.0, 0.38)])
def test_gain_over_the_exact_plan(ratio: float, gain: float) -> None:
    gains = [forecast_duplex([synthetic(30, ratio, seed)], 0.02).gain for seed in range(4)]
    assert sum(gains) / len(gains) >= gain


def test_one_segment_runs_every_phase_in_sequence() -> None:
    worker = WorkerCosts([1.0, 1.0], [2.0, 2.0], [3.0, 1.0], [2.0, 1.0])
    schedule = DuplexSchedule([worker], TransferTiming(0.5, 0.25, 0.125))
    assert schedule.iteration_s(()) == 6.0 + 4.5 + 3.5 + 2 * 0.25 + 0.125


def test_a_layer_is_pulled_while_another_is_still_pushed() -> None:
    """Backward ends at 1 (layer 1) and 2 (layer 0), pushes at 2 and 3, pulls at 3 and 4: then forward, 6 in all."""
    worker = WorkerCosts([1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    schedule = DuplexSchedule([worker], TransferTiming(0.0))
    assert schedule.iteration_s((0,)) == 6.0
    assert schedule.iteration_s(()) == 8.0


def test_the_input_side_goes_first() -> None:
    """Three gradients exist at once. Layer 2 has begun to leave, then 0 overtakes 1: it is back 3 s later.

    From there 12 s of forward pass hide what is left to travel.
    """
    worker = WorkerCosts([4.0, 4.0, 4.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0])
    assert DuplexSchedule([worker], TransferTiming(0.0)).iteration_s((0, 1)) == 3.0 + 12.0


def test_all_workers_wait_for_the_slowest_gradient() -> None:
    fast = WorkerCosts([0.1] * 6, [0.1] * 6, [0.1] * 6, [0.1] * 6)
    slow = WorkerCosts([1.0] * 6, [2.0] * 6, [0.5] * 6, [0.5] * 6)
    together = forecast_duplex([fast, slow, fast], 0.05)
    single = forecast_duplex([slow], 0.05)
    assert math.isclose(together.iteration, single.iteration, rel_tol=0.02)
    assert len(together.cuts) == 3


def test_identical_workers_do_not_change_the_forecast() -> None:
    worker = synthetic(12, 1.5, 3)
    one, eight = forecast_duplex([worker], 0.02), forecast_duplex([worker] * 8, 0.02)
    assert eight.iteration == one.iteration
    assert len(eight.cuts) == 8


def test_a_shared_server_link_slows_only_the_limited_workers() -> None:
    quick, slow = synthetic(10, 1.0, 1), synthetic(10, 8.0, 1)
    server = sum(quick.pull) / 2
    single = share_server_link([quick], server)[0]
    assert single == quick
    shared = share_server_link([quick, quick, quick, slow], server)
    assert math.isclose(sum(shared[0].pull), (server * 3) / (1 - server / sum(slow.pull)))
    assert shared[3] == slow
    assert (
        forecast_duplex([quick] * 4, 0.02, server=server, climbs=1).iteration
        > forecast_duplex([quick] * 4, 0.02, climbs=1).iteration
    )


@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=6), st.floats(0.1, 5.0))
def test_max_min_rates_are_fair(demands: list[float], capacity: float) -> None:
    rates = max_min_rates(demands, capacity)
    assert all(rate <= demand for rate, demand in zip(rates, demands, strict=True))
    assert math.isclose(sum(rates), min(capacity, sum(demands)), rel_tol=1e-9, abs_tol=1e-9)
    denied = [rate for rate, demand in zip(rates, demands, strict=True) if rate < demand]
    assert all(rate <= min(denied) * (1 + 1e-9) for rate in rates) if denied else True


def test_bad_workers_are_refused() -> None:
    with pytest.raises(UserError, match="at least one"):
        forecast_duplex([], 0.1)
    with pytest.raises(UserError, match=r"\[1, 2\] layers"):
        forecast_duplex([WorkerCosts([1.0], [1.0], [1.0], [1.0, 2.0])], 0.1)
    with pytest.raises(UserError, match=r"workers\[0\].push\[0\] is -1.0"):
        forecast_duplex([WorkerCosts([1.0], [1.0], [1.0], [-1.0])], 0.1)
