"""The jobs that are run live.

Where time is compared, devices are much slower on paper than this machine, so that it is their modelled speed and
links that decide, and not how many processes share its cores.
"""

from __future__ import annotations

from typing import Any

__all__ = ["empty_job", "overlapped_job", "uneven_job"]

_FAST = {"up": "unlimited", "down": "unlimited", "latency": "0 s", "overhead": "0 s"}
_LEASE = "10 s"


def empty_job(devices: int, rounds: int) -> dict[str, Any]:
    """A model of 1 MiB, of which every device takes one step on one sample: hardly anything but the round itself."""
    return {
        "recipe": "fedavg",
        "task": {
            "model": "mlp",
            "options": {"hidden": [330]},
            "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": devices, "test": 1},
        },
        "rounds": {"local": {"kind": "sgd", "steps": 1}, "batching": {"kind": "fixed", "size": 1}},
        "fleet": {
            "coordinator": {"link": _FAST},
            "devices": [{"name": "d", "count": devices, "flops": "1 TFLOP/s", "link": _FAST}],
            "lease": _LEASE,
        },
        **_rounds_only(rounds),
    }


def uneven_job(rounds: int, seed: int) -> dict[str, Any]:
    """Eight devices of four kinds behind four kinds of links; 200 kB each way."""
    kinds = ((40, 4, "30 ms"), (60, 8, "10 ms"), (90, 12, "5 ms"), (120, 20, "2 ms"))
    devices = [
        {"name": f"kind-{place}", "count": 2, "flops": f"{mflops} MFLOP/s", "link": _link_table(mbit, latency)}
        for place, (mflops, mbit, latency) in enumerate(kinds)
    ]
    return {
        "recipe": "fedavg",
        "seed": seed,
        "task": {
            "model": "mlp",
            "options": {"hidden": [64]},
            "data": {"kind": "synthetic", "shape": [1, 28, 28], "train": 400, "test": 10},
        },
        "fleet": {"devices": devices, "lease": _LEASE},
        **_rounds_only(rounds),
    }


def overlapped_job(recipe: str, rounds: int) -> dict[str, Any]:
    """Two devices and a ResNet-20 on 4 samples: pull and push take about as long as forward and backward."""
    return {
        "recipe": recipe,
        "task": {"model": "resnet20", "data": {"kind": "synthetic", "shape": [3, 32, 32], "train": 64, "test": 8}},
        "rounds": {"batching": {"kind": "fixed", "size": 4}},
        "fleet": {
            "devices": [{"name": "d", "count": 2, "flops": "700 MFLOP/s", "link": _link_table(12.6, "2 ms")}],
            "lease": _LEASE,
        },
        **_rounds_only(rounds),
    }


def _rounds_only(rounds: int) -> dict[str, Any]:
    """Nothing but rounds: no scores, no checkpoints."""
    return {"stop": {"rounds": rounds + 1}, "evaluate": 0, "checkpoint": 0}


def _link_table(mbit: float, latency: str) -> dict[str, str]:
    return {"up": f"{mbit} Mbit/s", "down": f"{mbit} Mbit/s", "latency": latency, "overhead": "1 ms"}
