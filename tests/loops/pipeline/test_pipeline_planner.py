"""The planner lays layers out by the speeds it knows, and weighs gain against migration."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from potluck.errors import UserError
from potluck.fleet import Fleet
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.loops.pipeline.pipeline_planner import PipelinePlan, PipelinePlanner
from potluck.loops.pipeline.recovery import NeighbourRecovery
from potluck.loops.pipeline.settings import Pipeline
from potluck.planning.partition import ShortMemoryError, evaluate_partition
from potluck.settings import decode_settings
from tests.planning.brute_force_partition import least_period

COSTS = PipelineCosts([1.0] * 8, [2.0] * 8, [10.0] * 7 + [math.inf], [1000] * 8, [0] * 8)


def planner_of(capacities: list[float], link: Any = "lan", **settings: Any) -> PipelinePlanner:
    devices = [
        {"name": f"d{index}", "flops": 1000 / capacity, "link": link} for index, capacity in enumerate(capacities)
    ]
    fleet = decode_settings({"devices": devices}, Fleet)
    return PipelinePlanner(fleet.members, COSTS, 10, decode_settings(settings, Pipeline))


def test_slow_devices_get_fewer_layers() -> None:
    plan = planner_of([1, 1, 1.5]).plan_layout(["d0", "d1", "d2"])
    assert [len(layers) for layers in plan.stage_layers] == [3, 3, 2]
    assert plan.windows == (3, 2, 1)
    assert plan.period == pytest.approx(3 * 3 * 10 / 1000, rel=0.2)


def test_pipedream_treats_devices_as_equal() -> None:
    plan = planner_of([1, 1, 8], partition="equal").plan_layout(["d0", "d1", "d2"])
    assert sorted(len(layers) for layers in plan.stage_layers) == [2, 3, 3]
    assert plan.order == ("d0", "d1", "d2")


def test_published_and_optimal_agree_where_links_are_fast() -> None:
    published = planner_of([1, 2, 4], partition="published").plan_layout(["d0", "d1", "d2"])
    optimal = planner_of([1, 2, 4], partition={"kind": "optimal", "subset": False}).plan_layout(["d0", "d1", "d2"])
    assert published.period == pytest.approx(optimal.period)


def test_cuts_by_hand_and_single() -> None:
    assert planner_of([1, 1, 1], partition={"kind": "cuts", "after": [0, 4]}).plan_layout(["d0", "d1", "d2"]).cuts == (
        1,
        5,
    )
    assert planner_of([1, 1], partition={"kind": "cuts", "after": [0, 4]}).plan_layout(["d0", "d1"]).order == (
        "d0",
        "d1",
    )
    assert planner_of([1, 1, 1], schedule="single").plan_layout(["d0", "d1", "d2"]).order == ("d0",)


@pytest.mark.parametrize("partition", ["equal", "published", "optimal"])
def test_more_devices_than_layers_leave_some_out(partition: str) -> None:
    names = [f"d{index}" for index in range(11)]
    plan = planner_of([1] * 11, partition=partition).plan_layout(names)
    assert len(plan.order) <= 8
    assert plan.order[0] == "d0"


def test_plans_for_each_single_death_are_ready() -> None:
    planner = planner_of([1, 2, 3])
    planner.plan_for_losses(["d0", "d1", "d2"])
    assert set(planner._loss_plans) == {frozenset(("d0", "d1")), frozenset(("d0", "d2"))}
    assert planner.plan_layout(["d0", "d2"]) is planner._loss_plans[frozenset(("d0", "d2"))]
    planner.clear_loss_plans()
    assert planner.plan_layout(["d0", "d2"]).order == ("d0", "d2")


def test_a_plan_for_the_death_of_the_first_is_ready_if_another_holds_the_data() -> None:
    planner = planner_of([1, 2, 3])
    planner.plan_for_losses(["d0", "d1", "d2"], ["d2", "d1"])
    assert len(planner._loss_plans) == 3
    assert planner.plan_layout(["d2", "d1"]) is planner._loss_plans[frozenset(("d1", "d2"))]
    assert planner.plan_layout(["d2", "d1"]).order[0] == "d2"
    planner.plan_for_losses(["d0"])
    assert planner._loss_plans == {}


def test_a_device_that_has_slowed_down_is_worth_moving_away_from() -> None:
    planner = planner_of([1, 1, 1])
    old = planner.plan_layout(["d0", "d1", "d2"])
    before = planner.current_period_s(old)
    planner.compute.slowness["d1"] = 4.0
    new = planner.plan_layout(["d0", "d1", "d2"])
    assert planner.current_period_s(old) == pytest.approx(4 * before, rel=0.2)
    assert new.period < planner.current_period_s(old) / 1.5
    assert planner.migration_s(old, new) > 0


HEAVY = replace(COSTS, activation_bytes=[50.0, 400.0, 200.0, 100.0, 100.0, 100.0, 50.0, 50.0])
SAMPLES = 10


def test_a_change_of_speed_is_noticed_within_three_batches_and_noise_is_not() -> None:
    planner = planner_of([1])
    plan = planner.plan_layout(["d0"])
    nominal_s = planner.compute.nominal_batch_s("d0", 0, 7)

    def observe(factor: float) -> bool:
        return planner.observe_batch(plan, "d0", factor * nominal_s)

    assert not any(observe(1.0 + noise) for noise in (0.05, -0.05, 0.02, -0.04))
    assert [observe(3.0) for _ in range(3)].count(True) == 1
    assert planner.compute.slowness["d0"] == pytest.approx(3.0)
    assert not observe(0.0)
    planner.forget_device("d0")
    assert "d0" not in planner.compute.slowness


def planner_with_memory(memory: list[float], **settings: Any) -> PipelinePlanner:
    """Uneven links, so that the windows that fill the pipeline are wider than the number of stages."""
    devices = [
        {
            "name": f"d{index}",
            "flops": 1000.0,
            "memory": memory_bytes,
            "link": {"up": "5000 B/s", "down": "5000 B/s", "latency": "20 ms"},
        }
        for index, memory_bytes in enumerate(memory)
    ]
    return PipelinePlanner(
        decode_settings({"devices": devices}, Fleet).members, HEAVY, SAMPLES, decode_settings(settings, Pipeline)
    )


def stage_bytes(plan: PipelinePlan, index: int) -> float:
    """Bytes of a stage: as many versions of its layers and batches between forward and backward as it lets in."""
    layers = plan.stage_layers[index]
    arriving = HEAVY.cut_bytes_per_sample[layers[0] - 1] * SAMPLES if layers[0] else 0.0
    between = sum(HEAVY.activation_bytes[layers[0] : layers[-1] + 1]) * SAMPLES
    return plan.windows[index] * (HEAVY.state_bytes(layers[0], layers[-1]) + between + arriving)


@pytest.mark.parametrize("fill", ["published", "filling"])
@pytest.mark.parametrize("order", ["given", "search"])
def test_a_small_device_gets_layers_that_fit(fill: str, order: str) -> None:
    """Compared with every possible layout at the same costs."""
    rng, names, refused = random.Random(0), ["d0", "d1", "d2"], 0
    for _ in range(60):
        memory = [rng.choice([5e3, 9e3, 15e3, 30e3, 1e9]) for _ in names]
        planner = planner_with_memory(
            memory, schedule={"kind": "1f1b", "fill": fill}, partition={"kind": "optimal", "order": order}
        )
        best = least_period(
            planner._partition_layers(names),
            planner._partition_devices(names),
            search=order == "search",
            subset=True,
            pinned=0,
        )
        if math.isinf(best):
            refused += 1
            with pytest.raises(ShortMemoryError, match=r"^d[012] is .* short of memory"):
                planner.plan_layout(names)
            continue
        plan = planner.plan_layout(names)
        indices = [names.index(name) for name in plan.order]
        assert (
            evaluate_partition(
                plan.cuts, indices, planner._partition_layers(names), planner._partition_devices(names)
            ).period
            == best
        )
        for index, name in enumerate(plan.order):
            assert stage_bytes(plan, index) <= memory[names.index(name)]
        assert list(plan.windows) == sorted(plan.windows, reverse=True)
    assert 0 < refused < 50


def test_what_is_between_forward_and_backward_counts() -> None:
    """Weights alone would leave the small device half of the layers."""
    wide, narrow = (
        planner_with_memory([1e9, 1e9]).plan_layout(["d0", "d1"]),
        planner_with_memory([1e9, 9e3]).plan_layout(["d0", "d1"]),
    )
    assert [len(stage) for stage in wide.stage_layers] == [4, 4]
    assert HEAVY.state_bytes(4, 7) < 9e3 < stage_bytes(wide, 1)
    assert 0 < len(narrow.stage_layers[1]) < 4


def test_windows_stay_within_memory() -> None:
    schedule = {"kind": "1f1b", "fill": "filling"}
    filling = {"schedule": schedule, "partition": {"kind": "cuts", "after": [2, 5]}, "replication": "none"}
    names = ["d0", "d1", "d2"]
    wide = planner_with_memory([1e9] * 3, **filling).plan_layout(names)
    tight = planner_with_memory([1e9, 25e3, 1e9], **filling).plan_layout(names)
    assert wide.windows[1] > tight.windows[1] == 2
    assert tight.windows[2] <= tight.windows[1] <= tight.windows[0]
    assert tight.period > wide.period, "it is known what that costs"


def test_gpipe_holds_one_batch_whatever_the_stages() -> None:
    gpipe = {"schedule": {"kind": "gpipe", "micro_batches": 5}, "partition": {"kind": "cuts", "after": [3]}}
    assert planner_with_memory([16e3, 1e9], **gpipe).plan_layout(["d0", "d1"]).cuts == (4,)
    with pytest.raises(ShortMemoryError, match="d0 is"):
        planner_with_memory([16e3, 1e9], **{**gpipe, "schedule": "1f1b"}).plan_layout(["d0", "d1"])


def test_a_neighbour_without_room_does_not_take_over() -> None:
    planner = planner_with_memory([1e9, 12e3, 1e9])
    old = planner.plan_fixed_layout((5, 6), ("d0", "d2", "d1"))
    plan = NeighbourRecovery().plan_recovery(planner, old, ["d0", "d1"])
    assert plan.order[0] == "d0"
    assert all(stage_bytes(plan, index) <= 12e3 for index, name in enumerate(plan.order) if name == "d1")


def test_a_death_that_leaves_too_little_memory_does_not_hide_the_others() -> None:
    planner = planner_with_memory([12e3, 1e9, 12e3])
    with pytest.raises(ShortMemoryError):
        planner.plan_layout(["d0", "d2"])
    planner.plan_for_losses(["d0", "d1", "d2"])
    assert set(planner._loss_plans) == {frozenset(("d0", "d1"))}


def test_a_model_that_fits_no_memory_is_an_error() -> None:
    devices = [{"name": "d0", "flops": 1.0, "memory": "1 kB"}]
    planner = PipelinePlanner(decode_settings({"devices": devices}, Fleet).members, COSTS, 10, Pipeline())
    with pytest.raises(UserError, match="short of memory"):
        planner.plan_layout(["d0"])
