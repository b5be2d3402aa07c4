"""Train your own module and tensors on a simulated fleet: python examples/own_model.py"""

import torch
from torch import nn

import potluck
from potluck.data import from_tensors

x = torch.randn(1200, 20)
y = (x[:, :10].sum(1) > x[:, 10:].sum(1)).long()
task = potluck.Task(
    model=lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)),
    data=from_tensors(x[:1000], y[:1000], x[1000:], y[1000:]),
)
result = potluck.simulate(
    {"task": "own", "fleet": "kitchen-table", "recipe": "fedbuff", "stop": {"rounds": 60, "accuracy": 0.95}},
    task=task,
)
print(f"{result.status}: {result.reason}")
print(f"{result.summary['time_s']:.2f} s of simulated time, {result.summary['limit']}")
print(result.module)
