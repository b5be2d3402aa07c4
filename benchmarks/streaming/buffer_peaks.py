"""How much a device must hold: everything that streamed in, or what streamed in since the last batch. Timing only."""

from __future__ import annotations

from typing import Any

import potluck
from benchmarks.streaming import scadles_testbed
from potluck.job import Job, make

__all__ = ["buffer_job", "measure_buffers"]


def buffer_job(rates: scadles_testbed.RateSet, policy: str, rounds: int, seed: int) -> Job:
    """ScaDLES with one policy or the other, the rest alike."""
    return make(
        {
            "task": scadles_testbed.task_table(),
            "fleet": scadles_testbed.fleet_table(),
            "recipe": "scadles",
            "stream": {**scadles_testbed.stream_table(rates), "buffer": policy},
            "stop": {"rounds": rounds},
            "timing_only": True,
            "evaluate": 0,
            "seed": seed,
        }
    )


def measure_buffers(rates: scadles_testbed.RateSet, policy: str, rounds: int, seed: int) -> dict[str, Any]:
    """The most that all devices together ever held, in samples."""
    summary = potluck.simulate(buffer_job(rates, policy, rounds, seed)).summary
    return {"peak": summary["streams"]["peak"], "time_s": summary["time_s"]}
