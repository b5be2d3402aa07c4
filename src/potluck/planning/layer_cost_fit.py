"""Fits relative layer costs and device factors to the seconds of those layers that each device has run.

    seconds(device, layer) ≈ factor(device) · cost(layer)

A device only runs some layers, so what it has not run follows from the other devices: layers that two devices have both
run relate their factors, and the prior relates layers that no common device has run. Errors are relative (logarithms),
and a layer counts in proportion to its cost, because that is how it enters the time of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

__all__ = ["LayerCostFit", "fit_layer_costs"]

_PRIOR_WEIGHT = 0.01  # of a layer's prior cost, relative to one device's observation of it
_LEAST_FRACTION = 1e-6  # of the total: what a layer without any cost counts as
_HOLD = 1e-9  # keeps the factor of a device that has run nothing at 1


class LayerCostFit(NamedTuple):
    """Relative costs of the layers, and by how much to multiply them for the seconds of each device."""

    costs: list[float]
    factors: list[float]


def fit_layer_costs(prior: Sequence[float], observed: Sequence[Mapping[int, float]]) -> LayerCostFit:
    """The fit to the observed seconds per layer of each device, starting from prior costs.

    Minimises Σ w(l)·(log s(d,l) − log f(d) − log c(l))² + p·Σ w(l)·(log c(l) − log prior(l))². For given factors the
    best costs are means; what remains is linear in the logarithms of the factors.
    """
    least = max(sum(prior), 1e-300) * _LEAST_FRACTION
    weights = np.array([max(cost, least) for cost in prior])
    prior_logs = np.log(weights)
    logs = np.zeros((len(observed), len(prior)))
    runs = np.zeros_like(logs)
    for device, seconds in enumerate(observed):
        for layer, value in seconds.items():
            logs[device, layer], runs[device, layer] = math.log(max(value, 1e-12)), 1.0
    pull = _PRIOR_WEIGHT + runs.sum(axis=0)  # per layer
    weighted = runs * weights
    base = (_PRIOR_WEIGHT * prior_logs + logs.sum(axis=0)) / pull
    matrix = np.diag(weighted.sum(axis=1)) - (weighted / pull) @ runs.T
    matrix += _HOLD * weights.sum() * np.eye(len(observed))
    factors = np.linalg.solve(matrix, (weighted * (logs - base)).sum(axis=1))
    costs = base - (runs * factors[:, None]).sum(axis=0) / pull
    return LayerCostFit([float(cost) for cost in np.exp(costs)], [float(factor) for factor in np.exp(factors)])
