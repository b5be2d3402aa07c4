"""What a job does about skewed classes on the device itself; nothing of it is sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from potluck.data import Dataset
from potluck.errors import SettingError
from potluck.job import Job
from potluck.model.carving import Carver
from potluck.model.decoupled.carving import GroupCarver
from potluck.model.skew import Plain, Remedy, frequencies

__all__ = ["remedy_of"]

Shards = Mapping[str, npt.NDArray[np.int64]]


def remedy_of(job: Job, data: Dataset, shards: Shards, carver: Carver | None) -> Remedy | None:
    """The job's remedy with each device's class frequencies; None where it has none."""
    skew, classes = job.rounds.skew, len(data.classes)
    if isinstance(skew, Plain):
        return None
    if not classes or data.train.y.dtype != torch.int64:
        raise SettingError("rounds.skew", f"needs classes, and {data.name!r} has none; leave it out")
    if isinstance(carver, GroupCarver):
        raise SettingError("rounds.skew", "class groups weigh their own classes already; leave it out")
    if job.stream is not None:
        return Remedy(skew, None)
    labels = data.train.labels
    return Remedy(skew, {device: frequencies(labels[shard], classes) for device, shard in shards.items()})
