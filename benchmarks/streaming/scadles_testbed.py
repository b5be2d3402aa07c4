"""The testbed of the paper (Tyagi and Swany 2022, ScaDLES, IEEE BigData, arXiv:2301.08897) and its published values.

Sixteen devices with one GPU of a K80 each; time and bytes are those of ResNet-152. The GPU runs at 35 % of its
4.37 TFLOP/s, the fraction that Potluck's presets assume for training on GPUs, so that a batch of 64 takes 0.93 s. Links
have 5 Gbit/s. The paper's devices reduce gradients among themselves; ours go through a coordinator, whose link is as
fast as all of theirs together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from benchmarks.benchmark_figures import PublishedValue

__all__ = [
    "ACCURACY_LOST",
    "BUFFER_RATIO",
    "COSTS",
    "SERVER",
    "SETS",
    "SPEED_UP",
    "STALLED",
    "SYNTHETIC",
    "RateSet",
    "fleet_table",
    "published_value",
    "stream_table",
    "task_table",
]

_SOURCE = "Tyagi and Swany 2022, arXiv:2301.08897: ResNet-152 on CIFAR-10, 16 devices, top-5 accuracy"

SPEED_UP: Mapping[str, float] = {"S1": 1.89, "S2": 1.15, "S1'": 3.29, "S2'": 1.42}
ACCURACY_LOST: Mapping[str, float] = {"S1": 0.06, "S2": 0.32, "S1'": 0.13, "S2'": 0.21}
BUFFER_RATIO: Mapping[str, float] = {"S1": 2.9e5 / 129, "S2": 4.36e6 / 633, "S1'": 6.2e5 / 143, "S2'": 3.6e6 / 384}
STALLED = {"ddl": 56.0, "scadles": 93.6}  # accuracy in percent, 10 devices with one class each


def published_value(value: float) -> PublishedValue:
    return PublishedValue(value, _SOURCE)


RateSet = Literal["S1", "S2", "S1'", "S2'"]
SETS: tuple[RateSet, ...] = ("S1", "S2", "S1'", "S2'")
COSTS = "resnet152-cifar"
SYNTHETIC = "synthetic:shape=3x32x32,train=10000,test=400,noise=4"  # needs no files
SERVER = {"kind": "sgd", "lr": 0.02, "momentum": 0.9}  # for 64 samples per device; chosen for the narrow network


def task_table(norm: str = "batch", data: str = "cifar10") -> dict[str, Any]:
    """Trains the narrow network and charges the time and bytes of ResNet-152."""
    return {"model": "benchmarks.networks:narrow", "data": data, "norm": norm, "costs": COSTS}


def fleet_table(devices: int = 16) -> dict[str, Any]:
    group = {"name": "k80", "count": devices, "flops": "1.53 TFLOP/s", "link": _link_table(5)}
    return {"devices": [group], "coordinator": {"link": _link_table(5 * devices)}}


def stream_table(rates: RateSet) -> Mapping[str, Any]:
    return {"rate": {"kind": "scadles", "set": rates}}


def _link_table(gbit: int) -> dict[str, str]:
    return {"up": f"{gbit} Gbit/s", "down": f"{gbit} Gbit/s", "latency": "100 us", "overhead": "0 s"}
