"""What the paper says: Tyagi and Swany 2022, ScaDLES, IEEE BigData, arXiv:2301.08897."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.benchmark_figures import PublishedValue

__all__ = ["ACCURACY_LOST", "BUFFER_RATIO", "SPEED_UP", "STALLED", "published_value"]

_SOURCE = "Tyagi and Swany 2022, arXiv:2301.08897: ResNet-152 on CIFAR-10, 16 devices, top-5 accuracy"

SPEED_UP: Mapping[str, float] = {"S1": 1.89, "S2": 1.15, "S1'": 3.29, "S2'": 1.42}
ACCURACY_LOST: Mapping[str, float] = {"S1": 0.06, "S2": 0.32, "S1'": 0.13, "S2'": 0.21}
BUFFER_RATIO: Mapping[str, float] = {"S1": 2.9e5 / 129, "S2": 4.36e6 / 633, "S1'": 6.2e5 / 143, "S2'": 3.6e6 / 384}
STALLED = {"ddl": 56.0, "scadles": 93.6}  # percent, 10 devices with one label each


def published_value(value: float) -> PublishedValue:
    return PublishedValue(value, _SOURCE)
