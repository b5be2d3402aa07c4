"""How long compressing a gradient takes, beside copying it and asking torch for its largest entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from potluck import seeds
from potluck.model.codecs import TopKCodec

__all__ = ["measure_compression", "time_compression"]


def time_compression(size: int, ratio: float, seed: int) -> tuple[float, float]:
    """Seconds of one thread for top-k with error feedback, from a gradient to its payload, and for copy plus topk."""
    gradient = _sample_gradient(size, seed)
    codec = TopKCodec(ratio=ratio)
    memory = codec.new_state()
    count = codec.entry_count(ratio, size)
    with _one_thread():
        codec.encode(gradient, memory)  # from the second round on there is something to feed back
        reference = _timed_seconds(lambda: (gradient.clone(), torch.topk(gradient, count)))
        return _timed_seconds(lambda: codec.encode(gradient, memory)), reference


def measure_compression(size: int, ratio: float, repeats: int, seed: int) -> Mapping[str, Any]:
    """Both times, again and again in turn."""
    found = [time_compression(size, ratio, seeds.child_seed(seed, repeat)) for repeat in range(repeats)]
    return {"ours_s": [ours for ours, _ in found], "reference_s": [reference for _, reference in found]}


def _sample_gradient(size: int, seed: int) -> Tensor:
    """Most entries small and a few large, as gradients are."""
    drawn = seeds.child_generator(seed, "gradient").standard_normal(size, dtype=np.float32)
    return torch.from_numpy(drawn**3)


def _timed_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
