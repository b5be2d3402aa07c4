"""The planners against brute force, and the gains of the published method."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from potluck.errors import UserError
from potluck.planning.partition import (
    DeviceSpecs,
    LayerSpecs,
    ShortMemoryError,
    evaluate_partition,
    ftpipehd_partition,
    plan_partition,
)
from potluck.planning.partition.partition_planner import Order
from potluck.planning.partition.pipeline_partition import Bandwidth
from tests.planning.brute_force_partition import least_period, least_shortage

INSTANCES = 5_000


def some_layers(rng: random.Random, count: int) -> LayerSpecs:
    """Integers, so that sums are exact; with ties, zeros, and illegal cuts."""
    return LayerSpecs(
        times=[rng.choice([0, 0, 1, 1, 2, 3, 7]) for _ in range(count)],
        outputs=[rng.choice([0, 1, 2, 4, 8, math.inf]) for _ in range(count)],
        weights=[rng.randrange(4) for _ in range(count)],
        activations=[rng.randrange(4) for _ in range(count)],
        in_flight=rng.choice([lambda to_end: to_end, lambda to_end: to_end, lambda to_end: 1]),
    )


def some_devices(rng: random.Random, count: int) -> DeviceSpecs:
    rates = [[rng.choice([0.5, 1, 1, 2, 4, math.inf, 0]) for _ in range(count)] for _ in range(count)]
    bandwidths: list[Bandwidth] = [rates, 1.0, math.inf]
    sizes = [rng.choice([4, 12, 24, 100, math.inf]) for _ in range(count)]
    return DeviceSpecs(
        capacities=[rng.choice([0.5, 1, 1, 2, 10]) for _ in range(count)],
        bandwidth=rng.choice(bandwidths),
        memory=rng.choice([sizes, ()]),
        duplex=rng.random() < 0.5,
    )


def agree(layers: LayerSpecs, devices: DeviceSpecs, search: bool, subset: bool, pinned: int | None) -> str:
    """Check that planner and brute force agree; returns their common answer."""
    order: Order = "search" if search else "given"
    try:
        partition = plan_partition(layers, devices, order=order, subset=subset, pinned=pinned)
    except ShortMemoryError as error:
        short_bytes = error.short_bytes
    except UserError:
        short_bytes = math.inf
    else:
        assert partition.period == least_period(layers, devices, search=search, subset=subset, pinned=pinned)
        assert pinned in (None, partition.order[0])
        assert subset or sorted(partition.order) == list(range(len(devices)))
        return "planned"
    assert short_bytes == least_shortage(layers, devices, search=search, subset=subset, pinned=pinned) > 0
    return "short" if short_bytes < math.inf else "no cuts"


@pytest.mark.parametrize(("search", "subset"), [(False, False), (False, True), (True, False), (True, True)])
def test_least_period_or_least_shortage_as_by_brute_force(search: bool, subset: bool) -> None:
    rng = random.Random(f"{search} {subset}")
    agreed = []
    for _ in range(INSTANCES):
        count = rng.choice([1, 2, 2, 3, 3, 3, 4] if not (search and subset) else [1, 2, 2, 3, 3])
        layers = some_layers(rng, rng.randint(1, 5 if search else 7))
        pinned = rng.choice([None, 0, count - 1]) if search or subset else None
        agreed.append(agree(layers, some_devices(rng, count), search, subset, pinned))
    assert agreed.count("planned") > INSTANCES // 3
    assert agreed.count("short") > INSTANCES // 50


@pytest.mark.parametrize(("search", "subset"), [(False, False), (False, True), (True, True)])
def test_layer_times_of_each_device_as_by_brute_force(search: bool, subset: bool) -> None:
    rng = random.Random(f"layer times {search} {subset}")
    for _ in range(INSTANCES // 5):
        layers, devices = some_layers(rng, rng.randint(1, 5)), some_devices(rng, rng.randint(1, 3))
        rows = [[*(rng.choice([0, 1, 2, 7]) for _ in layers.times[1:]), 1] for _ in devices.capacities]
        agree(layers, replace(devices, layer_times=rows), search, subset, None)


def test_the_published_recurrence_equals_brute_force() -> None:
    rng = random.Random("published")
    for _ in range(INSTANCES):
        layers, count = some_layers(rng, rng.randint(1, 7)), rng.randint(1, 4)
        capacities = [1, *(rng.choice([0.5, 1, 2, 10]) for _ in range(count - 1))]
        rates = [rng.choice([0.5, 1, 2, math.inf, 0]) for _ in range(count - 1)]
        devices = DeviceSpecs(capacities=capacities, bandwidth=lambda i, j, rates=rates: rates[min(i, j)])  # type: ignore[misc]
        expected = least_period(layers, devices, search=False, subset=False, pinned=None)
        try:
            assert ftpipehd_partition(layers.times, layers.outputs, capacities, rates).period == expected
        except UserError:
            assert math.isinf(expected)


def test_exact_equals_published_on_long_chains_with_real_values() -> None:
    rng = random.Random("long")
    for _ in range(40):
        times = [rng.choice([0, rng.random(), rng.expovariate(1)]) for _ in range(60)]
        outputs = [rng.choice([0, rng.random(), math.inf]) for _ in range(60)]
        capacities = [1.0, *(rng.uniform(0.2, 10) for _ in range(4))]
        ours = plan_partition(
            LayerSpecs(times=times, outputs=outputs), DeviceSpecs(capacities=capacities, bandwidth=0.5)
        )
        assert ours.period == ftpipehd_partition(times, outputs, capacities, [0.5] * 4).period


def test_search_in_any_numbering_of_the_devices_finds_the_same_period() -> None:
    rng = random.Random("numbering")
    layers = LayerSpecs(times=[rng.random() for _ in range(12)], outputs=[rng.random() for _ in range(12)])
    capacities = [1.0, 2.0, 0.5, 4.0, 1.5]
    first = plan_partition(layers, DeviceSpecs(capacities=capacities, bandwidth=3.0), order="search").period
    reversed_period = plan_partition(
        layers, DeviceSpecs(capacities=capacities[::-1], bandwidth=3.0), order="search"
    ).period
    assert first == reversed_period
    for _ in range(50):
        order = rng.sample(range(5), 5)
        assert plan_partition(layers, DeviceSpecs(capacities=capacities, bandwidth=3.0), order=order).period >= first


def test_ideal_gain_over_the_equal_split_is_seven_with_one_device_ten_times_slower() -> None:
    layers = LayerSpecs(times=[1] * 2100, outputs=[0] * 2100)
    devices = DeviceSpecs(capacities=[1, 1, 10])
    equal = plan_partition(layers, replace(devices, capacities=[1, 1, 1]))
    unaware = evaluate_partition(equal.cuts, equal.order, layers, devices)
    aware = plan_partition(layers, devices)
    assert aware.cuts == (1000, 2000)
    assert aware.period == pytest.approx(aware.ideal_period)
    assert unaware.period / aware.period == pytest.approx(7.0)


def test_order_matters_when_layers_are_coarse() -> None:
    layers = LayerSpecs(times=[4, 1, 4], outputs=[1, 1, 1])
    devices = DeviceSpecs(capacities=[1, 1, 4])
    assert plan_partition(layers, devices).period == 16
    partition = plan_partition(layers, devices, order="search")
    assert (partition.period, partition.order[1]) == (4, 2)


def test_leaving_a_device_out_can_win() -> None:
    layers, devices = LayerSpecs(times=[5, 5], outputs=[0, 0]), DeviceSpecs(capacities=[1, 10])
    assert plan_partition(layers, devices).period == 50
    partition = plan_partition(layers, devices, subset=True)
    assert (partition.period, partition.order, partition.cuts) == (10, (0,), ())


def test_ties_use_the_fewest_devices() -> None:
    layers, devices = LayerSpecs(times=[5, 0], outputs=[0, 0]), DeviceSpecs(capacities=[1, 1, 1])
    assert plan_partition(layers, devices, subset=True).order == (0,)
    assert plan_partition(layers, devices, subset=True, order="search").order == (0,)


def test_links_count_both_ways_one_after_the_other_or_at_once() -> None:
    rates = [[0, 2], [4, 0]]
    assert DeviceSpecs(capacities=[1, 1], bandwidth=rates).transfer_s(0, 1, 8) == 4 + 2
    assert DeviceSpecs(capacities=[1, 1], bandwidth=rates, duplex=True).transfer_s(0, 1, 8) == 4
    assert DeviceSpecs(capacities=[1, 1], bandwidth=0.0).transfer_s(0, 1, 0) == math.inf
    assert DeviceSpecs(capacities=[1, 1], bandwidth=math.inf).transfer_s(0, 1, math.inf) == math.inf


def test_an_earlier_stage_holds_more_versions() -> None:
    layers = LayerSpecs(times=[1] * 4, outputs=[0] * 4, weights=[8] * 4, activations=[2] * 4)
    partition = plan_partition(layers, DeviceSpecs(capacities=[1, 1, 1], memory=[30, 40, 100]))
    assert partition.cuts == (1, 3)
    assert partition.memory_bytes == (30, 40, 10)


def test_a_stage_also_holds_its_inputs() -> None:
    layers = LayerSpecs(times=[1] * 4, outputs=[5, 1, 3, 0], weights=[8] * 4, activations=[2] * 4)
    assert evaluate_partition((1, 3), (0, 1, 2), layers, DeviceSpecs(capacities=[1, 1, 1])).memory_bytes == (
        30,
        2 * 25,
        13,
    )
    at_once = replace(layers, in_flight=lambda to_end: 1)
    assert evaluate_partition((1, 3), (0, 1, 2), at_once, DeviceSpecs(capacities=[1, 1, 1])).memory_bytes == (
        10,
        25,
        13,
    )


def test_a_memory_shortage_names_the_device_and_the_missing_bytes() -> None:
    layers = LayerSpecs(times=[1] * 4, outputs=[0] * 4, weights=[8e6] * 4)
    with pytest.raises(ShortMemoryError, match=r"device 0 is 1 MB short .* needs 16 MB and has 15 MB") as error:
        plan_partition(layers, DeviceSpecs(capacities=[1, 1], memory=[15e6, 24e6]))
    assert error.value.device == 0
    assert error.value.short_bytes == 1e6


def test_bottleneck_is_named() -> None:
    layers = LayerSpecs(times=[1, 3], outputs=[8, 0])
    assert evaluate_partition((1,), (0, 1), layers, DeviceSpecs(capacities=[1, 1])).bottleneck == "stage 1 on device 1"
    slow = evaluate_partition((1,), (1, 0), layers, DeviceSpecs(capacities=[1, 1], bandwidth=2.0))
    assert slow.bottleneck == "link from device 1 to device 0"
    assert (slow.period, slow.throughput, slow.stages) == (8, 1 / 8, (range(1), range(1, 2)))


@pytest.mark.parametrize(
    ("cuts", "order", "problem"),
    [
        ((1,), (0,), "1 cuts make 2 stages"),
        ((1,), (0, 0), "different devices"),
        ((1,), (0, 2), "from 0 to 1"),
        ((0,), (0, 1), "no stage may be empty"),
        ((3,), (0, 1), "between 1 and 2"),
        ((2,), (0, 1), "no cut is possible before layer 2"),
    ],
)
def test_manual_cuts_are_checked(cuts: tuple[int, ...], order: tuple[int, ...], problem: str) -> None:
    layers = LayerSpecs(times=[1, 1, 1], outputs=[1, math.inf, 1])
    with pytest.raises(UserError, match=problem):
        evaluate_partition(cuts, order, layers, DeviceSpecs(capacities=[1, 1]))


def test_invalid_arguments_are_refused() -> None:
    layers, devices = LayerSpecs(times=[1, 1], outputs=[1, 1]), DeviceSpecs(capacities=[1, 1])
    with pytest.raises(UserError, match="3 devices for 2 layers"):
        plan_partition(layers, DeviceSpecs(capacities=[1, 1, 1]))
    with pytest.raises(UserError, match="cannot be stage 0"):
        plan_partition(layers, devices, pinned=1)
    with pytest.raises(UserError, match="too many to search"):
        plan_partition(layers, DeviceSpecs(capacities=[1] * 11), order="search", subset=True)
    with pytest.raises(UserError, match="unknown value"):
        plan_partition(layers, devices, order="sideways")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="one fewer"):
        ftpipehd_partition([1, 1], [1, 1], [1, 1], [])
    right: dict[str, Any] = {"times": [1, 1], "outputs": [1, 1]}
    bad_calls: list[dict[str, Any]] = [
        {"times": []},
        {"times": [math.nan, 1]},
        {"outputs": [1]},
        {"weights": [math.inf, 1]},
    ]
    for wrong in bad_calls:
        with pytest.raises(UserError, match="layers"):
            LayerSpecs(**{**right, **wrong})
    for odd in ({"capacities": [0, 1]}, {"memory": [1]}, {"memory": [-1, 1]}):
        with pytest.raises(UserError, match="devices"):
            DeviceSpecs(**{"capacities": [1, 1], **odd})  # type: ignore[arg-type]


@pytest.mark.wall_clock
def test_ten_devices_fifty_layers_are_searched_in_seconds() -> None:
    rng = random.Random("ten")
    layers = LayerSpecs(
        times=[rng.random() for _ in range(50)], outputs=[rng.random() for _ in range(50)], weights=[1.0] * 50
    )
    devices = DeviceSpecs(capacities=[rng.uniform(1, 10) for _ in range(10)], bandwidth=20.0, memory=[60.0] * 10)
    started_at = time.perf_counter()
    partition = plan_partition(layers, devices, order="search", subset=True, pinned=0)
    assert time.perf_counter() - started_at < 5
    assert partition.order[0] == 0


def test_exact_grows_nearly_in_proportion_to_the_layers() -> None:
    """Counts cost evaluations instead of measuring time."""
    assert priced(2048) < 2.6 * priced(1024)


def priced(count: int) -> int:
    from potluck.planning.partition import fixed_order_partition, stage_costs

    rng = random.Random("growth")
    layers = LayerSpecs(times=[rng.random() for _ in range(count)], outputs=[rng.random() for _ in range(count)])
    prices = stage_costs.time_costs(layers, DeviceSpecs(capacities=[1.0, 2.0, 3.0], bandwidth=1.0))
    calls = 0

    def slope(device: int, versions: int) -> float:
        nonlocal calls
        calls += 1
        return prices.slope(device, versions)

    fixed_order_partition.solve_fixed_order(replace(prices, slope=slope), range(3), subset=False, pinned=None)
    return calls
