"""Finds out whether a lower precision works on this machine, in a child process.

On some processors bfloat16 or float16 dies with an illegal instruction although their flags promise it.
"""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from functools import cache

__all__ = ["autocast_refusal"]

_TIMEOUT_S = 120.0
_SCRIPT = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.GELU(), nn.Conv2d(32, 32, 3), nn.Flatten(2),
                    nn.Linear(144, 64), nn.TransformerEncoderLayer(64, 2, 256, batch_first=True), nn.LayerNorm(64))
with torch.autocast("cpu", torch.{precision}):
    outputs = net(torch.randn(8, 3, 16, 16))
    loss = nn.functional.cross_entropy(outputs[:, 0], torch.arange(8))
loss.backward()
assert all(param.grad.isfinite().all() for param in net.parameters()), "a gradient is not finite"
"""


@cache
def autocast_refusal(precision: str) -> str | None:
    """Why this machine cannot train in this precision, None if it can; tried once in a process."""
    command = [sys.executable, "-c", _SCRIPT.replace("{precision}", precision)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"a trial on its processor ({_processor()}) took longer than {_TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"a trial on its processor ({_processor()}) died with {signal.Signals(-done.returncode).name}"
    return f"a trial failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"


def _processor() -> str:
    return platform.processor() or platform.machine()
