"""The recipes that lay one model out over a chain of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["FTPIPEHD", "FTPIPEHD_AS_PUBLISHED", "GPIPE", "PIPEDREAM", "RESPIPE", "SINGLE"]

_SGD = {"kind": "sgd", "lr": 0.05, "momentum": 0.9}
_NEVER = {"every": 0, "on_change": False, "join": False}


def _pipeline_recipe(**pipeline: Any) -> Mapping[str, Any]:
    """A quiet point costs a pipeline time, so there are fewer of them than rounds have."""
    return {"pipeline": {"optimizer": _SGD, **pipeline}, "evaluate": 100, "checkpoint": 100}


FTPIPEHD = _pipeline_recipe(
    schedule={"kind": "1f1b", "vertical_sync": True, "fill": "filling", "predict": True},
    partition={"kind": "optimal", "order": "search"},
    replication={"kind": "incremental"},
    recovery={"kind": "repartition"},
)
FTPIPEHD_AS_PUBLISHED = _pipeline_recipe(
    schedule={"kind": "1f1b", "vertical_sync": True, "aggregate": 5},
    partition={"kind": "published"},
    replication={"kind": "periodic", "chain": 100, "central": 200, "optimizer_state": False},
    recovery={"kind": "repartition", "notice": "timer", "factor": 2.0, "consistent": False},
    adaptation={"first": 10, "every": 100, "on_change": False, "horizon": 0},
)
PIPEDREAM = _pipeline_recipe(
    schedule={"kind": "1f1b", "vertical_sync": False},
    partition={"kind": "equal"},
    replication={"kind": "none"},
    recovery={"kind": "restart"},
    adaptation=_NEVER,
)
GPIPE = _pipeline_recipe(
    schedule={"kind": "gpipe"},
    partition={"kind": "equal"},
    replication={"kind": "none"},
    recovery={"kind": "restart"},
    adaptation=_NEVER,
)
RESPIPE = _pipeline_recipe(
    schedule={"kind": "1f1b", "vertical_sync": False},
    partition={"kind": "equal"},
    replication={"kind": "periodic", "chain": 100, "central": 0},
    recovery={"kind": "neighbour", "consistent": False},
    adaptation=_NEVER,
)
SINGLE = _pipeline_recipe(schedule={"kind": "single"}, replication={"kind": "none"}, recovery={"kind": "restart"})
