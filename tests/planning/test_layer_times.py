"""Each layer's time is learnt from what it took, whatever its MACs say, and follows a change of the device."""

from __future__ import annotations

import random

import pytest

from potluck.planning.layer_times import LayerTimes, PassSeconds

NOMINAL = PassSeconds([1.0, 0.0, 2.0, 0.5], [2.0, 0.0, 4.0, 1.0])
TRUTH = PassSeconds([0.2, 0.3, 1.0, 0.1], [0.5, 0.1, 1.5, 0.6])


def scaled(factor: float, noise: float = 0.0, rng: random.Random | None = None) -> PassSeconds:
    rng = rng or random.Random(0)
    forward, backward = ([factor * each * (1 + rng.gauss(0, noise)) for each in one] for one in TRUTH)
    return PassSeconds(forward, backward)


def check(layers: LayerTimes, truth: PassSeconds, rel: float) -> None:
    predicted = layers.predicted_s(NOMINAL)
    assert predicted.forward == pytest.approx(truth.forward, rel=rel)
    assert predicted.backward == pytest.approx(truth.backward, rel=rel)


def test_the_first_plan_uses_the_nominal_times() -> None:
    assert LayerTimes().predicted_s(NOMINAL) == NOMINAL


def test_times_need_not_follow_the_macs() -> None:
    layers = LayerTimes()
    layers.observe_passes(NOMINAL, TRUTH)
    check(layers, TRUTH, 1e-9)
    half = PassSeconds([each / 2 for each in NOMINAL.forward], [each / 2 for each in NOMINAL.backward])
    assert layers.predicted_s(half).forward == pytest.approx([each / 2 for each in TRUTH.forward])


def test_noise_is_averaged() -> None:
    layers, rng = LayerTimes(), random.Random(1)
    for _ in range(40):
        layers.observe_passes(NOMINAL, scaled(1.0, 0.1, rng))
    check(layers, TRUTH, 0.12)


@pytest.mark.parametrize("factor", [0.1, 0.4, 1.6, 10.0])
def test_a_lasting_change_is_followed_in_five_turns(factor: float) -> None:
    layers = LayerTimes()
    for _ in range(20):
        layers.observe_passes(NOMINAL, scaled(1.0))
    for _ in range(5):
        layers.observe_passes(NOMINAL, scaled(factor))
    check(layers, scaled(factor), 0.05)


def test_one_slow_turn_changes_nothing() -> None:
    layers = LayerTimes()
    for _ in range(3):
        layers.observe_passes(NOMINAL, TRUTH)
    layers.observe_passes(NOMINAL, scaled(20.0))
    check(layers, TRUTH, 1e-9)


def test_where_only_the_sum_is_known_it_scales_every_layer() -> None:
    layers = LayerTimes()
    layers.observe_total(NOMINAL, 2 * NOMINAL.total_s)
    assert layers.predicted_s(NOMINAL).forward == pytest.approx([2.0, 0.0, 4.0, 1.0], abs=0.01)
    layers.observe_passes(NOMINAL, TRUTH)
    layers.observe_passes(NOMINAL, TRUTH)
    check(layers, TRUTH, 1e-9)
