"""The workload of the peers: 100 devices per round, one SGD step each on 32 synthetic images of 28×28."""

from __future__ import annotations

from typing import Any, NamedTuple

from potluck.job import Job, make

__all__ = ["DEVICES", "MODELS", "PeerNetwork", "fleet_job", "peers_job"]

DEVICES = 100
_BATCH = 32


class PeerNetwork(NamedTuple):
    """A model of the zoo, its options and its title."""

    title: str
    name: str
    options: dict[str, Any]


MODELS = {
    "mlp": PeerNetwork("MLP, 25 k parameters", "mlp", {"hidden": [32]}),
    "cnn": PeerNetwork("CNN, 1.2 M parameters", "cnn", {}),
}

# Fast and slow boards and links, with constant and with varying speed.
_VARYING = {"kind": "random-walk", "low": 0.3, "high": 1.0, "every": "20 s"}
_GROUPS: tuple[tuple[float, dict[str, Any]], ...] = (
    (0.3, {"preset": "phone", "speed": _VARYING}),
    (0.2, {"preset": "pi4"}),
    (0.2, {"preset": "pi5"}),
    (0.1, {"preset": "jetson-nano"}),
    (0.1, {"preset": "laptop", "speed": _VARYING}),
    (0.1, {"preset": "desktop", "link": "wan"}),
)


def peers_job(model: str, rounds: int, seed: int, devices: int = DEVICES) -> Job:
    """Every device holds exactly one batch, so that all frameworks compute the same."""
    network = MODELS[model]
    data = {"kind": "synthetic", "shape": [1, 28, 28], "train": devices * _BATCH, "test": _BATCH}
    return make(
        {
            "task": {"model": network.name, "options": network.options, "data": data},
            "fleet": {"devices": [{"preset": "pi4", "count": devices}]},
            "recipe": "fedavg",
            "rounds": {"local": {"steps": 1}, "batching": {"kind": "fixed", "size": _BATCH}},
            "stop": {"rounds": rounds},
            "evaluate": 0,
            "seed": seed,
        }
    )


def fleet_job(devices: int, rounds: int, seed: int) -> Job:
    """A large uneven fleet of which 100 devices are invited to each round; timing only."""
    groups = [{**group, "count": round(fraction * devices)} for fraction, group in _GROUPS]
    return make(
        {
            "task": {"model": "cnn", "data": {"kind": "synthetic", "shape": [1, 28, 28]}},
            "fleet": {"devices": groups},
            "recipe": "fedavg",
            "rounds": {"devices": DEVICES, "local": {"steps": 1}},
            "stop": {"rounds": rounds},
            "timing_only": True,
            "seed": seed,
        }
    )
