"""Four networks, two batch sizes, ten bandwidths, and the device that runs them.

The publication names no device speed, but says that gains peak between 1 and 5 Gbit/s, which is where communication and
computation are about equal. Only a narrow range of speeds satisfies this for all eight workloads (network × batch); we
use the one that centres their balance points in 1 to 5 Gbit/s on a logarithmic scale. Nothing else is fitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch

from potluck.model import zoo
from potluck.model.layer_chain import trace_layers
from potluck.model.model_profile import ModelProfile, derive_profile
from potluck.planning.segments import WorkerCosts

__all__ = [
    "BANDWIDTHS",
    "BATCHES",
    "NETWORKS",
    "RTT_S",
    "OverlapWorkload",
    "admissible_flops",
    "middle_flops",
    "overlap_workload",
]

NETWORKS = {"resnet152": "ResNet-152", "vgg19": "VGG-19", "googlenet": "GoogLeNet", "inception-v4": "Inception-v4"}
BATCHES = (16, 32)
BANDWIDTHS = tuple(1e8 * 100 ** (index / 9) for index in range(10))  # bit/s, 0.1 to 10 Gbit/s in even ratios
RTT_S = 0.010
_PEAK = (1e9, 5e9)  # bit/s between which the published gains peak


@dataclass(frozen=True)
class OverlapWorkload:
    """One network and batch on the device: seconds and bytes of each layer."""

    forward: list[float]
    backward: list[float]
    param_bytes: list[int]

    @property
    def compute_s(self) -> float:
        return sum(self.forward) + sum(self.backward)

    @property
    def balance_bandwidth(self) -> float:
        """The bandwidth in bit/s at which pull and push take as long as forward and backward."""
        return 2 * 8 * sum(self.param_bytes) / self.compute_s

    def split_large_layers(self, fraction: float) -> OverlapWorkload:
        """Split every layer with more than this fraction of the bytes, as duplex transfers do in a run.

        A layer runs when all its chunks have arrived and produces their gradients at once, so its whole cost is on
        the last chunk.
        """
        most = fraction * sum(self.param_bytes)
        chunks = [max(1, math.ceil(nbytes / most)) for nbytes in self.param_bytes]
        return OverlapWorkload(
            forward=[
                each for cost, count in zip(self.forward, chunks, strict=True) for each in _cost_on_last(cost, count)
            ],
            backward=[
                each for cost, count in zip(self.backward, chunks, strict=True) for each in _cost_on_last(cost, count)
            ],
            param_bytes=[
                each
                for nbytes, count in zip(self.param_bytes, chunks, strict=True)
                for each in _split_evenly(nbytes, count)
            ],
        )

    def worker_at(self, bandwidth: float) -> WorkerCosts:
        transfer_s = [8 * nbytes / bandwidth for nbytes in self.param_bytes]
        return WorkerCosts(self.forward, self.backward, transfer_s, transfer_s)


def overlap_workload(network: str, batch: int, flops: float | None = None) -> OverlapWorkload:
    """The costs on the device described above, or on one of another speed."""
    return _workload_on(_network_profile(network), batch, middle_flops() if flops is None else flops)


def middle_flops() -> float:
    """The middle of the admissible range, on a logarithmic scale."""
    return math.sqrt(math.prod(admissible_flops()))


@cache
def admissible_flops() -> tuple[float, float]:
    """The slowest and the fastest device on which all workloads balance inside the published band.

    A balance point moves in proportion to the device's speed.
    """
    balances = [
        _workload_on(_network_profile(network), batch, 1.0).balance_bandwidth
        for network in NETWORKS
        for batch in BATCHES
    ]
    return _PEAK[0] / min(balances), _PEAK[1] / max(balances)


def _workload_on(unit: ModelProfile, batch: int, flops: float) -> OverlapWorkload:
    scale = batch / unit.batch / flops
    return OverlapWorkload(
        forward=[layer.forward_s * scale for layer in unit.layers],
        backward=[layer.backward_s * scale for layer in unit.layers],
        param_bytes=[layer.param_bytes for layer in unit.layers],
    )


def _cost_on_last(cost: float, chunks: int) -> list[float]:
    return [0.0] * (chunks - 1) + [cost]


def _split_evenly(nbytes: int, chunks: int) -> list[int]:
    bounds = [nbytes * index // chunks for index in range(chunks + 1)]
    return [end - begin for begin, end in pairwise(bounds)]


@cache
def _network_profile(network: str) -> ModelProfile:
    """The network's layers on meta tensors, for one sample at one operation per second."""
    with torch.device("meta"):
        module = zoo.build_model(network)
    return derive_profile(trace_layers(module, zoo.model_entry(network).shape), 1, 1.0, model=network)
