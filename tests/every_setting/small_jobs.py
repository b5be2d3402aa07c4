"""Small jobs in which settings matter: uneven devices, thin links, tiny networks; a fraction of a second each."""

from __future__ import annotations

from typing import Any

__all__ = [
    "BLOCKS",
    "CHAIN",
    "CONV",
    "DEEP",
    "LINK",
    "MLP",
    "PICTURES",
    "UNEVEN",
    "WALK",
    "WIDE",
    "Tables",
    "breaking",
    "every_device",
    "pipeline",
    "rounds",
    "stream",
]

Tables = dict[str, Any]

DATA: Tables = {"kind": "synthetic", "classes": 4, "shape": [1, 4, 4], "train": 96, "test": 32, "owners": 6}
PICTURES: Tables = {"kind": "synthetic", "classes": 4, "shape": [1, 6, 6], "train": 96, "test": 32}
MLP: Tables = {"model": "mlp", "options": {"hidden": [12, 8]}, "data": DATA}
CONV: Tables = {"model": "tests.frozen.own:small_conv", "data": PICTURES}
BLOCKS: Tables = {"model": "tests.frozen.own:four_blocks", "data": PICTURES}
DEEP: Tables = {"model": "mlp", "options": {"hidden": [16, 12, 12, 8]}, "data": DATA}

LINK: Tables = {"up": "100 kbit/s", "down": "200 kbit/s", "latency": "10 ms", "overhead": "2 ms"}
WIDE: Tables = {"up": "2 Mbit/s", "down": "2 Mbit/s", "latency": "2 ms", "overhead": "1 ms"}
UNEVEN: Tables = {
    "lease": "2 s",
    "devices": [
        {"name": "slow", "flops": "200 kFLOP/s", "link": LINK},
        {"name": "mid", "flops": "500 kFLOP/s", "link": LINK, "count": 2},
        {"name": "fast", "flops": "1 MFLOP/s", "link": {**LINK, "up": "400 kbit/s"}},
    ],
}
CHAIN: Tables = {
    "lease": "1 s",
    "devices": [
        {"name": "head", "flops": "200 kFLOP/s", "link": WIDE},
        {"name": "mid", "flops": "100 kFLOP/s", "link": WIDE},
        {"name": "tail", "flops": "150 kFLOP/s", "link": WIDE},
    ],
}
WALK: Tables = {"kind": "random-walk", "low": 0.2, "every": "150 ms"}


def rounds(recipe: str, /, *, job: Tables | None = None, **parts: Any) -> Tables:
    """Three rounds of the uneven fleet; `parts` go to `[rounds]`, and `job` replaces whole keys."""
    settings = {"batching": {"size": 16}, **parts}
    tables = {"recipe": recipe, "seed": 3, "task": MLP, "fleet": UNEVEN, "stop": {"rounds": 3}, "rounds": settings}
    return tables | (job or {})


def stream(recipe: str, /, *, job: Tables | None = None, **settings: Any) -> Tables:
    """Three rounds on data that streams in; `settings` go to `[stream]`."""
    rate = {"kind": "uniform", "mean": 30.0, "deviation": 14.0}
    given = {"rate": rate, **settings}
    tables = {"recipe": recipe, "seed": 4, "task": MLP, "fleet": UNEVEN, "stop": {"rounds": 3}, "stream": given}
    return tables | (job or {})


def pipeline(recipe: str, /, *, job: Tables | None = None, **settings: Any) -> Tables:
    """Ten batches over three devices; `settings` go to `[pipeline]`."""
    tables = {
        "recipe": recipe, "seed": 6, "task": DEEP, "fleet": CHAIN, "stop": {"rounds": 10},
        "evaluate": 5, "checkpoint": 4, "pipeline": {"batch": 16, **settings},
    }  # fmt: skip
    return tables | (job or {})


def every_device(fleet: Tables, **settings: Any) -> Tables:
    """The fleet with more said of each device."""
    return {**fleet, "devices": [{**group, **settings} for group in fleet["devices"]]}


def breaking(fleet: Tables, *faults: Tables) -> Tables:
    """The fleet with faults."""
    return {**fleet, "faults": list(faults)}
