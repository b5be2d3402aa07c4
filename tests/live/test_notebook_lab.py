"""A lab that is started where `__main__` is no file, as in a notebook, hands its task to the devices by value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CELL = """
import torch
from torch import nn
import potluck

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

x = torch.randn(60, 4)
job = {
    "recipe": "fedavg",
    "task": "own",
    "fleet": {"devices": [{"name": "d", "count": 2, "flops": "20 MFLOP/s"}]},
    "stop": {"rounds": 2},
}
task = potluck.Task(Net, (x, (x.sum(1) > 0).long()), loss)
result = potluck.lab(job, folder=FOLDER, task=task, options=potluck.LabOptions(emulate_fleet=False))
print(result.status, result.reason)
"""
NOTEBOOK = """
import sys
main = sys.modules["__main__"]
del main.__file__
main.__spec__ = None
exec(compile(CELL, "<cell>", "exec"), main.__dict__)
"""


def test_classes_of_a_notebook_reach_the_devices(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    script = tmp_path / "kernel.py"
    script.write_text(f"FOLDER = {str(tmp_path / 'run')!r}\nCELL = {CELL!r}\n{NOTEBOOK}")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done 2 rounds"
