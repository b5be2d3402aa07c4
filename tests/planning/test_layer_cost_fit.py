"""Layer costs and device factors are recovered from the layers that devices have run."""

from __future__ import annotations

import pytest

from potluck.planning.layer_cost_fit import fit_layer_costs

TRUE = [1.0, 4.0, 2.0, 8.0, 1.0, 6.0]
PRIOR = [2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def run_layers(factor: float, *layers: int) -> dict[int, float]:
    return {layer: factor * TRUE[layer] for layer in layers}


def relative(costs: list[float], first: int = 0) -> list[float]:
    return [cost / costs[first] for cost in costs]


def test_without_observations_the_prior_stays() -> None:
    fit = fit_layer_costs(PRIOR, [{}, {}])
    assert fit.costs == pytest.approx(PRIOR)
    assert fit.factors == pytest.approx([1.0, 1.0])


def test_a_device_that_has_run_all_layers_is_the_reference_for_the_others() -> None:
    fit = fit_layer_costs(PRIOR, [run_layers(1.0, *range(6)), run_layers(3.0, 3, 4)])
    assert relative(fit.costs) == pytest.approx(TRUE, rel=0.05)
    assert fit.factors[1] / fit.factors[0] == pytest.approx(3.0, rel=0.02)


def test_layers_that_two_devices_have_run_relate_their_speeds() -> None:
    """Without the shared layer 2 only the prior could tell how fast the second device is."""
    fit = fit_layer_costs(PRIOR, [run_layers(1.0, 0, 1, 2), run_layers(5.0, 2, 3, 4, 5)])
    assert fit.factors[1] / fit.factors[0] == pytest.approx(5.0, rel=0.15)
    assert relative(fit.costs) == pytest.approx(TRUE, rel=0.15)


def test_the_prior_relates_layers_that_no_device_has_in_common() -> None:
    fit = fit_layer_costs(TRUE, [run_layers(1.0, 0, 1), run_layers(7.0, 2, 3), {}])
    assert fit.factors[1] / fit.factors[0] == pytest.approx(7.0)
    assert relative(fit.costs) == pytest.approx(TRUE)


def test_a_layer_without_cost_is_no_obstacle() -> None:
    fit = fit_layer_costs([0.0, 1.0], [{0: 0.0, 1: 2.0}])
    assert fit.factors[0] * fit.costs[1] == pytest.approx(2.0, rel=0.01)
    assert fit.factors[0] * fit.costs[0] < 1e-3
