"""The planner against brute force, the published dynamic programme and the timing model."""

from __future__ import annotations

import math
import random
import timeit
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from potluck.errors import UserError
from potluck.planning.segments import (
    STRATEGIES,
    Direction,
    RequestWindow,
    SegmentPlan,
    Strategy,
    plan_segments,
    plan_windowed_pull,
)
from potluck.planning.segments.segment_plan import makespan_of_cuts, windowed_pull_s
from tests.planning.segment_references import brute_force_plan, published_plan

DIRECTIONS: tuple[Direction, ...] = ("pull", "push")
Instance = tuple[list[float], list[float], float]

seconds = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(0.0, 1e3, allow_subnormal=False))
instances = st.integers(0, 30).flatmap(
    lambda layers: st.tuples(
        st.lists(seconds, min_size=layers, max_size=layers),
        st.lists(seconds, min_size=layers, max_size=layers),
        seconds,
    )
)
directions = st.sampled_from(DIRECTIONS)


def draw_instances(count: int, most_layers: int, seed: int = 1) -> Iterator[Instance]:
    """Continuous values, small integers (many ties and zeros) and networks with a few heavy layers."""
    rng = random.Random(seed)
    kinds = (
        rng.random,
        lambda: float(rng.randint(0, 3)),
        lambda: rng.choice((0.0, 1.0)),
        lambda: rng.lognormvariate(0.0, 1.5),
    )
    for _ in range(count):
        layers = rng.randint(1, most_layers)
        computing, transferring = rng.choice(kinds), rng.choice(kinds)
        overhead = rng.choice((0.0, 0.1, 1.0, 3.0, rng.random()))
        yield [computing() for _ in range(layers)], [transferring() for _ in range(layers)], overhead


def same(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=1e-12, abs_tol=1e-12)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planner_equals_brute_force(direction: Direction) -> None:
    """21,000 instances in all, small ones more often."""
    for most_layers, count in ((8, 8_000), (12, 2_500)):
        for compute, transfer, overhead in draw_instances(count, most_layers, seed=most_layers):
            check_against(brute_force_plan(compute, transfer, overhead, direction), compute, transfer, overhead)


@pytest.mark.long
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planner_equals_brute_force_on_many(direction: Direction) -> None:
    for compute, transfer, overhead in draw_instances(50_000, 12, seed=2):
        check_against(brute_force_plan(compute, transfer, overhead, direction), compute, transfer, overhead)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planner_equals_published_programme(direction: Direction) -> None:
    for compute, transfer, overhead in draw_instances(2_000, 24, seed=3):
        check_against(published_plan(compute, transfer, overhead, direction), compute, transfer, overhead)


@pytest.mark.long
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planner_equals_published_programme_on_many(direction: Direction) -> None:
    for compute, transfer, overhead in draw_instances(100_000, 32, seed=4):
        check_against(published_plan(compute, transfer, overhead, direction), compute, transfer, overhead)


def check_against(reference: SegmentPlan, compute: list[float], transfer: list[float], overhead: float) -> None:
    plan = plan_segments(compute, transfer, overhead, reference.direction)
    assert same(plan.makespan, reference.makespan), (compute, transfer, overhead, reference)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_planner_equals_published_programme_on_a_deep_network(direction: Direction) -> None:
    for compute, transfer, overhead in draw_instances(20, 152, seed=5):
        check_against(published_plan(compute, transfer, overhead, direction), compute, transfer, overhead)


@given(instances, directions, st.sampled_from(STRATEGIES), seconds)
def test_replayed_cuts_give_the_stated_makespan(
    instance: Instance, direction: Direction, strategy: Strategy, latency: float
) -> None:
    compute, transfer, overhead = instance
    plan = plan_segments(compute, transfer, overhead, direction, strategy, latency)
    assert same(makespan_of_cuts(compute, transfer, overhead, direction, plan.cuts, latency), plan.makespan)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_replayed_reference_cuts_give_their_makespan(direction: Direction) -> None:
    for compute, transfer, overhead in draw_instances(300, 10, seed=6):
        for reference in (brute_force_plan, published_plan):
            plan = reference(compute, transfer, overhead, direction)
            assert same(makespan_of_cuts(compute, transfer, overhead, direction, plan.cuts), plan.makespan)


@given(instances, directions)
def test_lower_bounds_hold(instance: Instance, direction: Direction) -> None:
    compute, transfer, overhead = instance
    if not compute:
        return
    bound = max(overhead + transfer[0] + sum(compute), overhead + sum(transfer) + compute[-1])
    best = plan_segments(compute, transfer, overhead, direction).makespan
    assert best >= bound * (1 - 1e-12)
    # At best both resources run in parallel, so no phase is shortened by more than half.
    assert best >= plan_segments(compute, transfer, overhead, direction, "sequential").makespan / 2 * (1 - 1e-12)


@given(instances, directions, st.sampled_from(STRATEGIES))
def test_optimal_is_never_above_a_baseline(instance: Instance, direction: Direction, strategy: Strategy) -> None:
    best = plan_segments(*instance, direction).makespan
    assert best <= plan_segments(*instance, direction, strategy).makespan * (1 + 1e-12)


@given(instances, directions, st.data())
def test_more_work_is_never_faster(instance: Instance, direction: Direction, data: st.DataObject) -> None:
    before = plan_segments(*instance, direction).makespan
    compute, transfer, overhead = list(instance[0]), list(instance[1]), instance[2]
    extra = data.draw(seconds)
    quantity = data.draw(st.sampled_from(("compute", "transfer", "overhead")))
    if quantity == "overhead" or not compute:
        overhead += extra
    else:
        index = data.draw(st.integers(0, len(compute) - 1))
        (compute if quantity == "compute" else transfer)[index] += extra
    assert plan_segments(compute, transfer, overhead, direction).makespan >= before * (1 - 1e-12)


@given(instances, directions, st.sampled_from(STRATEGIES), st.integers(-20, 20))
def test_plans_are_scale_invariant(instance: Instance, direction: Direction, strategy: Strategy, power: int) -> None:
    """A power of two scales without rounding, so even the cuts stay the same."""
    scale = 2.0**power
    compute, transfer, overhead = instance
    plan = plan_segments(compute, transfer, overhead, direction, strategy)
    scaled = plan_segments(
        [c * scale for c in compute], [t * scale for t in transfer], overhead * scale, direction, strategy
    )
    assert scaled.cuts == plan.cuts
    assert scaled.makespan == plan.makespan * scale


@given(instances, st.data())
def test_pull_and_push_are_mirror_images(instance: Instance, data: st.DataObject) -> None:
    """Any cuts take as long in a pull as in a push with the same times: time is reversed."""
    layers = len(instance[0])
    cuts = tuple(i for i in range(layers - 1) if data.draw(st.booleans()))
    assert same(makespan_of_cuts(*instance, "pull", cuts), makespan_of_cuts(*instance, "push", cuts))


@given(instances, directions, st.sampled_from(STRATEGIES))
def test_segments_cover_every_layer_once_in_transfer_order(
    instance: Instance, direction: Direction, strategy: Strategy
) -> None:
    plan = plan_segments(*instance, direction, strategy)
    segments = plan.segments if direction == "pull" else plan.segments[::-1]
    assert [layer for first, last in segments for layer in range(first, last + 1)] == list(range(len(instance[0])))
    assert plan.cuts == tuple(last for _, last in segments)[:-1]


@settings(max_examples=60)
@given(instances, directions, seconds)
def test_latency_is_added_once_and_does_not_change_the_cuts(
    instance: Instance, direction: Direction, latency: float
) -> None:
    without, plan = plan_segments(*instance, direction), plan_segments(*instance, direction, latency=latency)
    assert plan.cuts == without.cuts
    assert same(plan.makespan, without.makespan + (latency if instance[0] else 0.0))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_latency_is_exact_when_every_segment_is_tracked(direction: Direction) -> None:
    """Replays each segment with its own delayed arrival over all cut sets, which never adds a constant at the end."""
    for compute, transfer, overhead in draw_instances(400, 7, seed=7):
        latency = 0.75
        best = min(
            tracked(compute, transfer, overhead, direction, mask, latency) for mask in range(2 ** (len(compute) - 1))
        )
        assert same(plan_segments(compute, transfer, overhead, direction, latency=latency).makespan, best)


def tracked(
    compute: list[float], transfer: list[float], overhead: float, direction: Direction, mask: int, latency: float
) -> float:
    cuts = tuple(i for i in range(len(compute) - 1) if mask >> i & 1)
    link = device = finished = 0.0
    for first, last in SegmentPlan(cuts, 0.0, "", direction, len(compute)).segments:
        computing, transferring = sum(compute[first : last + 1]), overhead + sum(transfer[first : last + 1])
        if direction == "pull":
            link += transferring
            device = max(device, link + latency) + computing
            finished = device
        else:
            device += computing
            link = max(link, device) + transferring
            finished = link + latency
    return finished


def test_a_case_worked_by_hand() -> None:
    """Two equal layers take 1+2+2 = 5 unsegmented. Cut, the second arrives at 4 and ends at 5: no gain if Δt = 1."""
    assert plan_segments([1, 1], [1, 1], 1.0).makespan == 5.0
    assert plan_segments([1, 1], [1, 1], 0.5) == SegmentPlan((0,), 4.0, "optimal", "pull", 2)
    assert plan_segments([1, 1], [1, 1], 0.5, "push").segments == ((1, 1), (0, 0))


def test_ibatch_sizes_the_next_batch_to_the_running_one() -> None:
    """Three seconds of the first layer's computation cover Δt and two layers; three of its push cover three layers."""
    assert plan_segments([3, 1, 1, 1], [1, 1, 1, 1], 1.0, "pull", "ibatch").cuts == (0, 2)
    assert plan_segments([1, 1, 1, 1], [1, 1, 1, 3], 0.0, "push", "ibatch").cuts == (2,)


def test_mg_wfbp_merges_what_the_start_up_would_delay() -> None:
    """From the output, gradients are ready at 2, 3, 4, 7: with Δt = 1.5 only the last is worth its own segment."""
    assert plan_segments([3, 1, 1, 2], [1, 1, 1, 1], 1.5, "push", "mg-wfbp").cuts == (0,)
    assert plan_segments([3, 1, 1, 2], [1, 1, 1, 1], 1.5, "pull", "mg-wfbp").cuts == (0,)
    assert plan_segments([1, 1, 1], [1, 1, 1], 0.5, "push", "mg-wfbp").cuts == (0, 1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_layer_and_one_layer(direction: Direction, strategy: Strategy) -> None:
    assert plan_segments([], [], 1.0, direction, strategy, latency=2.0) == SegmentPlan((), 0.0, strategy, direction, 0)
    assert plan_segments([], [], 1.0, direction, strategy).segments == ()
    one = plan_segments([2.0], [3.0], 1.0, direction, strategy, latency=0.5)
    assert (one.cuts, one.makespan, one.segments) == ((), 6.5, ((0, 0),))


@pytest.mark.parametrize(
    ("compute", "transfer", "overhead", "message"),
    [
        ([1.0], [1.0, 2.0], 0.0, "1 layers and transfer has 2"),
        ([1.0, -1.0], [1.0, 2.0], 0.0, r"compute\[1\] is -1.0"),
        ([1.0, 1.0], [math.nan, 2.0], 0.0, r"transfer\[0\] is nan"),
        ([1.0, 1.0], [1.0, math.inf], 0.0, r"transfer\[1\] is inf"),
        ([1e308, 1e308], [1.0, 1.0], 0.0, "compute is inf"),
        ([1.0, "x"], [1.0, 1.0], 0.0, "compute is not a list of numbers"),
        ([1.0], [1.0], -1.0, "overhead is -1.0"),
        ([1.0], [1.0], math.nan, "overhead is nan"),
    ],
)
def test_bad_values_are_refused(compute: list[float], transfer: list[float], overhead: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_segments(compute, transfer, overhead)


def test_bad_names_are_refused() -> None:
    with pytest.raises(UserError, match="choose pull or push"):
        plan_segments([1], [1], 0.0, cast(Direction, "up"))
    with pytest.raises(UserError, match="choose from sequential"):
        plan_segments([1], [1], 0.0, "pull", cast(Strategy, "best"))
    with pytest.raises(UserError, match="at most 20"):
        brute_force_plan([1.0] * 21, [1.0] * 21, 0.0)


def test_planning_a_deep_network_is_fast() -> None:
    """Five times the promised 0.1 ms, so that a busy machine does not fail the build."""
    compute, transfer, overhead = next(i for i in draw_instances(100, 152, seed=8) if len(i[0]) > 140)
    calls = 50
    best = (
        min(timeit.repeat(lambda: plan_segments(compute, transfer, overhead, "push"), number=calls, repeat=5)) / calls
    )
    assert best < 0.5e-3


def test_short_segments_wait_for_their_round_trips() -> None:
    """Two requests in flight: the third one leaves when the first segment has arrived, at 1, and arrives at 12."""
    compute, transfer, cuts = [0.5] * 4, [1.0] * 4, (0, 1, 2)
    assert windowed_pull_s(compute, transfer, 0.0, cuts, RequestWindow(2, 10.0)) == 1 + 10 + 1 + 1 + 0.5
    assert windowed_pull_s(compute, transfer, 0.0, cuts, RequestWindow(4, 10.0)) == 4.5
    assert windowed_pull_s(compute, transfer, 0.0, (), RequestWindow(2, 10.0)) == 6.0


def test_a_pull_with_few_requests_in_flight_is_never_slower_than_an_uncut_one() -> None:
    for computing, moving, overhead in draw_instances(300, 12):
        for round_trip_s in (0.0, 0.5, 20.0):
            window = RequestWindow(2, round_trip_s)
            plan = plan_windowed_pull(computing, moving, overhead, window)
            uncut_s = windowed_pull_s(computing, moving, overhead, (), window)
            assert plan.makespan - round_trip_s <= uncut_s + 1e-9
            assert plan.makespan >= plan_segments(computing, moving, overhead).makespan - 1e-9
