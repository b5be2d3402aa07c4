"""Regression on a table of numbers: arrays of NumPy, three sites with inputs of their own, a loss of PyTorch.

    python examples/tabular_regression.py        # fewer rounds: python examples/tabular_regression.py 5

The standard deviation of the noise is 1, so no model has a smaller RMSE. Live on this machine:
`potluck.lab(job, task=task, folder="runs/live")`. On several: `potluck.serve` on one and
`potluck.join(address, token, name=…, task=task)` on each device, which imports this file.
"""

import sys

import numpy as np
from torch import nn

import potluck
from potluck.data import from_tensors

SITES, SIGMA = 3, 1.0


def draw(samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Friedman's function of five columns out of ten; each site sees another range of the first column."""
    rng = np.random.default_rng(seed)
    site = rng.integers(SITES, size=samples)
    x = rng.random((samples, 10))
    x[:, 0] = (x[:, 0] + site) / SITES
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + SIGMA * rng.standard_normal(samples), site


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))


x, y, site = draw(3000, seed=0)
x_test, y_test, _ = draw(1000, seed=1)
mean, deviation = y.mean(), y.std()
task = potluck.Task(
    build_model,
    from_tensors(x, (y - mean) / deviation, x_test, (y_test - mean) / deviation, owner=site),
    loss=nn.MSELoss(),
    metrics=["rmse", "r2"],
)
job = {"recipe": "fedavg", "task": "own", "fleet": {"devices": [{"preset": "laptop"}, {"preset": "pi4", "count": 2}]},
       "split": "owner", "rounds": {"local": {"kind": "adamw", "lr": 0.003, "epochs": 2}},
       "stop": {"rounds": 40}}  # fmt: skip

if __name__ == "__main__":
    job["stop"]["rounds"] = int(sys.argv[1]) if sys.argv[1:] else 40
    result = potluck.simulate(job, task=task)
    print(result.metrics)
    rmse = result.summary["metrics"]["rmse"] * deviation
    print(f"RMSE {rmse:.2f}; predicting the mean has {y_test.std():.2f}, and no model less than {SIGMA:.2f}")
