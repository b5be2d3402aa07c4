"""The planner lays layers out by the speeds it knows, and weighs gain against migration."""

from __future__ import annotations

import math
from typing import Any

import pytest

from potluck.errors import UserError
from potluck.fleet import Fleet
from potluck.loops.pipeline.costs import ChainCosts
from potluck.loops.pipeline.planner import Planner
from potluck.loops.pipeline.settings import Pipeline
from potluck.settings import decode

COSTS = ChainCosts([1.0] * 8, [2.0] * 8, [10.0] * 7 + [math.inf], [1000] * 8, [0] * 8)


def planner_of(capacities: list[float], link: Any = "lan", **settings: Any) -> Planner:
    devices = [
        {"name": f"d{place}", "flops": 1000 / capacity, "link": link} for place, capacity in enumerate(capacities)
    ]
    fleet = decode({"devices": devices}, Fleet)
    return Planner(fleet.members, COSTS, 10, decode(settings, Pipeline))


def test_slow_devices_get_fewer_layers() -> None:
    plan = planner_of([1, 1, 1.5]).plan(["d0", "d1", "d2"])
    assert [len(layers) for layers in plan.stages] == [3, 3, 2]
    assert plan.windows == (3, 2, 1)
    assert plan.period == pytest.approx(3 * 3 * 10 / 1000, rel=0.2)


def test_pipedream_takes_them_for_equal() -> None:
    plan = planner_of([1, 1, 8], partition="equal").plan(["d0", "d1", "d2"])
    assert sorted(len(layers) for layers in plan.stages) == [2, 3, 3]
    assert plan.order == ("d0", "d1", "d2")


def test_published_and_optimal_agree_where_links_are_fast() -> None:
    published = planner_of([1, 2, 4], partition="published").plan(["d0", "d1", "d2"])
    optimal = planner_of([1, 2, 4], partition={"kind": "optimal", "subset": False}).plan(["d0", "d1", "d2"])
    assert published.period == pytest.approx(optimal.period)


def test_cuts_by_hand_and_single() -> None:
    assert planner_of([1, 1, 1], partition={"kind": "cuts", "after": [0, 4]}).plan(["d0", "d1", "d2"]).cuts == (1, 5)
    assert planner_of([1, 1], partition={"kind": "cuts", "after": [0, 4]}).plan(["d0", "d1"]).order == ("d0", "d1")
    assert planner_of([1, 1, 1], schedule="single").plan(["d0", "d1", "d2"]).order == ("d0",)


@pytest.mark.parametrize("partition", ["equal", "published", "optimal"])
def test_more_devices_than_layers_leave_some_out(partition: str) -> None:
    names = [f"d{place}" for place in range(11)]
    plan = planner_of([1] * 11, partition=partition).plan(names)
    assert len(plan.order) <= 8
    assert plan.order[0] == "d0"


def test_plans_for_each_single_death_are_ready() -> None:
    planner = planner_of([1, 2, 3])
    planner.foresee(["d0", "d1", "d2"])
    assert set(planner._ahead) == {frozenset(("d0", "d1")), frozenset(("d0", "d2"))}
    assert planner.plan(["d0", "d2"]) is planner._ahead[frozenset(("d0", "d2"))]
    planner.forget()
    assert planner.plan(["d0", "d2"]).order == ("d0", "d2")


def test_a_device_that_has_slowed_down_is_worth_moving_away_from() -> None:
    planner = planner_of([1, 1, 1])
    old = planner.plan(["d0", "d1", "d2"])
    before = planner.period(old)
    planner.slowness["d1"] = 4.0
    new = planner.plan(["d0", "d1", "d2"])
    assert planner.period(old) == pytest.approx(4 * before, rel=0.2)
    assert new.period < planner.period(old) / 1.5
    assert planner.migration(old, new) > 0


def test_what_fits_no_memory_is_said() -> None:
    devices = [{"name": "d0", "flops": 1.0, "memory": "1 kB"}]
    planner = Planner(decode({"devices": devices}, Fleet).members, COSTS, 10, Pipeline())
    with pytest.raises(UserError, match="short of memory"):
        planner.plan(["d0"])
