"""What the planner learns of devices and layers, from a reference and from reports."""

from __future__ import annotations

import math

import pytest

from potluck.fleet import Device, Fleet
from potluck.loops.pipeline.compute_estimates import ComputeEstimates, MeasuredLayers
from potluck.loops.pipeline.pipeline_costs import PipelineCosts
from potluck.settings import decode_settings

TRUE = [1.0, 5.0, 2.0, 2.0, 8.0, 1.0]  # seconds of a batch on a device of capacity 1
COSTS = PipelineCosts([1.0] * 6, [2.0] * 6, [10.0] * 5 + [math.inf], [1000] * 6, [0] * 6)
SAMPLES = 10


def estimates_of(count: int = 3, learns_layers: bool = True) -> ComputeEstimates:
    """Devices that would take 3 s for each layer by MACs."""
    tables = [{"name": f"d{index}", "flops": 10.0} for index in range(count)]
    fleet: dict[str, Device] = {each.name: each for each in decode_settings({"devices": tables}, Fleet).members}
    return ComputeEstimates(fleet, COSTS, SAMPLES, learns_layers)


def report(estimates: ComputeEstimates, device: str, layers: range, capacity: float = 1.0, batches: int = 4) -> bool:
    seconds = [capacity * TRUE[layer] for layer in layers]
    changes = [estimates.observe_batch(device, layers, sum(seconds), seconds) for _ in range(batches)]
    return any(changes)


def test_nominal_times_follow_macs_and_declared_speeds() -> None:
    assert estimates_of().layer_seconds("d0") == pytest.approx([3.0] * 6)


def test_a_reference_gives_the_layers_costs_and_scales_the_declared_speeds() -> None:
    estimates = estimates_of()
    estimates.set_reference("d0", MeasuredLayers([seconds / 4 for seconds in TRUE], [0.75 * each for each in TRUE]))
    for device in ("d0", "d1"):
        assert estimates.layer_seconds(device) == pytest.approx(TRUE, rel=0.01)
    assert estimates.forward_fraction(1) == pytest.approx(0.25)


def test_a_stage_is_compared_with_the_reference_for_the_same_layers() -> None:
    """With the published scalar feedback, too: C = measured / reference."""
    for learns_layers in (True, False):
        estimates = estimates_of(learns_layers=learns_layers)
        estimates.set_reference("d0", MeasuredLayers(TRUE, [0.0] * 6))
        assert report(estimates, "d1", range(2, 4), capacity=3.0)
        assert estimates.layer_seconds("d1") == pytest.approx([3 * seconds for seconds in TRUE], rel=0.05)


def test_without_a_reference_layers_that_devices_exchange_reveal_their_speeds() -> None:
    estimates = estimates_of(2)
    report(estimates, "d0", range(3))
    report(estimates, "d1", range(3, 6), capacity=4.0)
    assert estimates.layer_seconds("d0")[:3] == pytest.approx(TRUE[:3])
    assert estimates.layer_seconds("d1")[3:] == pytest.approx([4 * seconds for seconds in TRUE[3:]])
    assert report(estimates, "d1", range(2, 6), capacity=4.0), "it has run a layer for the first time"
    assert estimates.layer_seconds("d1") == pytest.approx([4 * seconds for seconds in TRUE], rel=0.15)


def test_new_layers_are_not_taken_for_a_slower_device() -> None:
    """By MACs layer 4 takes as long as others; that it takes longer must not make known layers look slower."""
    estimates = estimates_of(1)
    report(estimates, "d0", range(2))
    report(estimates, "d0", range(4, 6))
    assert estimates.slowness["d0"] == pytest.approx(1.0)
    assert estimates.layer_seconds("d0")[:2] == pytest.approx(TRUE[:2])
    assert estimates.has_run("d0", range(4, 6))
    assert not estimates.has_run("d0", range(2, 4))


def test_a_change_of_speed_concerns_all_layers_of_a_device() -> None:
    estimates = estimates_of(1)
    report(estimates, "d0", range(3))
    report(estimates, "d0", range(3, 6))
    assert report(estimates, "d0", range(3, 6), capacity=5.0)
    assert estimates.layer_seconds("d0") == pytest.approx([5 * seconds for seconds in TRUE], rel=0.05)


def test_a_device_that_is_new_is_as_slow_as_others_are() -> None:
    estimates = estimates_of(3)
    for device in ("d0", "d1"):
        report(estimates, device, range(6), capacity=6.0)
    assert sum(estimates.layer_seconds("d2")) == pytest.approx(6 * sum(TRUE), rel=0.05)


def test_a_slow_first_batch_does_not_stay_in_the_estimate() -> None:
    estimates = estimates_of(1)
    estimates.observe_batch("d0", range(6), 100.0, [50.0, 1.0, 1.0, 1.0, 1.0, 46.0])
    report(estimates, "d0", range(6), batches=8)
    assert estimates.layer_seconds("d0") == pytest.approx(TRUE, rel=0.05)


def test_what_is_known_of_a_lost_device_is_dropped() -> None:
    estimates = estimates_of(2)
    report(estimates, "d0", range(6), capacity=6.0)
    estimates.forget_device("d0")
    assert not estimates.has_layer_times
    assert estimates.layer_seconds("d0") == pytest.approx([3.0] * 6)
