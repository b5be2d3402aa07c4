"""Sixteen devices like those of the paper: one GPU of a K80 each, and time and bytes as ResNet-152 has them.

The GPU is reckoned at 35 % of its 4.37 TFLOP/s, the share that Potluck's presets assume for training on GPUs, so that a
batch of 64 takes 0.93 s. Links have 5 Gbit/s. The paper's gradients are reduced among the devices; here they go through
a coordinator, whose own link is as wide as all of theirs together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["COSTS", "INVENTED", "SERVER", "SETS", "RateSet", "fleet_table", "stream_table", "task_table"]

RateSet = Literal["S1", "S2", "S1'", "S2'"]
SETS: tuple[RateSet, ...] = ("S1", "S2", "S1'", "S2'")
COSTS = "resnet152-cifar"
INVENTED = "synthetic:shape=3x32x32,train=10000,test=400,noise=4"  # needs no files
SERVER = {"kind": "sgd", "lr": 0.02, "momentum": 0.9}  # for 64 samples per device; what the narrow network bears


def task_table(norm: str = "batch", data: str = "cifar10") -> dict[str, Any]:
    """The narrow network, which stands for ResNet-152 where time and bytes are concerned."""
    return {"model": "benchmarks.streaming.streaming_network:narrow", "data": data, "norm": norm, "costs": COSTS}


def fleet_table(devices: int = 16) -> dict[str, Any]:
    group = {"name": "k80", "count": devices, "flops": "1.53 TFLOP/s", "link": _link_table(5)}
    return {"devices": [group], "coordinator": {"link": _link_table(5 * devices)}}


def stream_table(rates: RateSet) -> Mapping[str, Any]:
    return {"rate": {"kind": "scadles", "set": rates}}


def _link_table(gbit: int) -> dict[str, str]:
    return {"up": f"{gbit} Gbit/s", "down": f"{gbit} Gbit/s", "latency": "100 us", "overhead": "0 s"}
