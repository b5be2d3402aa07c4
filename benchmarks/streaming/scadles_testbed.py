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
    "BASE_RATES",
    "BEST_CODEC",
    "BEST_PULL_CODEC",
    "BUFFER_RATIO",
    "COSTS",
    "METRICS",
    "SETS",
    "SPEED_UP",
    "STALLED",
    "SYNTHETIC",
    "RateSet",
    "fleet_table",
    "published_value",
    "server_table",
    "stream_table",
    "task_table",
]

_SOURCE = "Tyagi and Swany 2022, arXiv:2301.08897: ResNet-152 on CIFAR-10, 16 devices, top-5 accuracy"

SPEED_UP: Mapping[str, float] = {"S1": 1.89, "S2": 1.15, "S1'": 3.29, "S2'": 1.42}
ACCURACY_LOST: Mapping[str, float] = {"S1": 0.06, "S2": 0.32, "S1'": 0.13, "S2'": 0.21}
BUFFER_RATIO: Mapping[str, float] = {"S1": 2.9e5 / 129, "S2": 4.36e6 / 633, "S1'": 6.2e5 / 143, "S2'": 3.6e6 / 384}
# Top-5 accuracy in percent: 10 devices with one class each, and 25 devices with four each.
STALLED: Mapping[str, Mapping[str, float]] = {
    "one class each": {"ddl": 56.0, "scadles": 93.6},
    "four classes each": {"ddl": 35.0, "scadles": 77.8},
}


def published_value(value: float) -> PublishedValue:
    return PublishedValue(value, _SOURCE)


RateSet = Literal["S1", "S2", "S1'", "S2'"]
SETS: tuple[RateSet, ...] = ("S1", "S2", "S1'", "S2'")
COSTS = "resnet152-cifar"
SYNTHETIC = "synthetic:shape=3x32x32,train=10000,test=400,noise=4"  # needs no files
# The learning rate for 64 samples per device: for each recipe, the best of those that rate_tuning.py tries.
BASE_RATES: Mapping[str, float] = {"ddl": 0.1, "scadles": 0.1, "scadles-plus": 0.1}
METRICS = ("accuracy", "top-5")
# Measured with 4 devices in 200 rounds of LeNet-5: 31.8 % at 105x both ways, PowerSGD of rank 1 29.6 % at 110x,
# graded 29.1 % at 223x; 45.6 % without compression, PowerSGD of rank 4 44.4 % at 32x.
BEST_CODEC: Mapping[str, Any] = {"kind": "top-k", "ratio": 0.035, "values": "sign", "warmup": 20}
BEST_PULL_CODEC: Mapping[str, Any] = {"kind": "top-k", "ratio": 0.035, "values": "sign", "warmup": 20}


def task_table(norm: str = "batch", data: str = "cifar10") -> dict[str, Any]:
    """Trains the narrow network, with an output for every class, and charges the time and bytes of ResNet-152."""
    return {
        "model": "benchmarks.networks:narrow",
        "options": {"classes": 100 if data == "cifar100" else 10},
        "data": data,
        "norm": norm,
        "costs": COSTS,
        "metrics": list(METRICS),
    }


def server_table(recipe: str, lr: float | None = None) -> dict[str, Any]:
    """SGD with momentum, at the recipe's own base rate unless another one is given."""
    family = next(name for name in ("scadles-plus", "scadles", "ddl") if recipe.startswith(name))
    return {"kind": "sgd", "lr": BASE_RATES[family] if lr is None else lr, "momentum": 0.9}


def fleet_table(devices: int = 16) -> dict[str, Any]:
    group = {"name": "k80", "count": devices, "flops": "1.53 TFLOP/s", "memory": "12 GB", "link": _link_table(5)}
    return {"devices": [group], "coordinator": {"link": _link_table(5 * devices)}}


def stream_table(rates: RateSet) -> Mapping[str, Any]:
    return {"rate": {"kind": "scadles", "set": rates}}


def _link_table(gbit: int) -> dict[str, str]:
    return {"up": f"{gbit} Gbit/s", "down": f"{gbit} Gbit/s", "latency": "100 us", "overhead": "0 s"}
