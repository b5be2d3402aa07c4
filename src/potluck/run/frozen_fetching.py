"""Decides which devices fetch frozen weights from the coordinator: those that cannot build the same ones."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from potluck.job import Job
from potluck.loops.frozen_exchange import FrozenFetcher
from potluck.loops.node import Node
from potluck.model.frozen_weights import FrozenWeights
from potluck.run.device_state import DeviceStates
from potluck.task import Task

__all__ = ["build_frozen_fetcher", "devices_build_frozen"]


class FrozenSetup(Protocol):
    """What a prepared job knows of its frozen weights."""

    @property
    def frozen(self) -> FrozenWeights: ...

    @property
    def builds_frozen(self) -> bool: ...


def devices_build_frozen(job: Job, task: Task | None) -> bool:
    """Whether simulated devices have the coordinator's frozen weights: from a factory and the seed, or from its code.

    Not so where `start` names a file of the coordinator, or a module was given as an object. Live devices compare
    digests instead.
    """
    return job.start is None and not (task is not None and isinstance(task.model, nn.Module))


def build_frozen_fetcher(setup: FrozenSetup, node: Node, states: DeviceStates, retry_s: float) -> FrozenFetcher | None:
    """What fetches a device's missing frozen weights; None if the model has none."""
    if not setup.frozen.nbytes:
        return None
    lacking = [] if setup.builds_frozen else setup.frozen.layers_with_weights()
    missing = states.missing_frozen_for(node.name, node.incarnation, lacking)
    return FrozenFetcher(node, setup.frozen, missing, float(retry_s))
