"""What a job does about skewed classes on the device itself; nothing of it is sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from potluck.data import Dataset
from potluck.errors import SettingError
from potluck.job import Job
from potluck.model.class_skew import DeviceSkewCorrection, NoSkewCorrection, class_frequencies
from potluck.model.decoupled.group_extractor import GroupExtractor
from potluck.model.submodel_interface import SubmodelExtractor

__all__ = ["build_skew_remedy"]

Shards = Mapping[str, npt.NDArray[np.int64]]


def build_skew_remedy(
    job: Job, data: Dataset, shards: Shards, carver: SubmodelExtractor | None
) -> DeviceSkewCorrection | None:
    """The job's remedy with each device's class frequencies; None where it has none."""
    skew, classes = job.rounds.skew, len(data.classes)
    if isinstance(skew, NoSkewCorrection):
        return None
    if not classes or data.train.y.dtype != torch.int64:
        raise SettingError("rounds.skew", f"needs classes, and {data.name!r} has none; leave it out")
    if isinstance(carver, GroupExtractor):
        raise SettingError("rounds.skew", "class groups weigh their own classes already; leave it out")
    if job.stream is not None:
        return DeviceSkewCorrection(skew, None)
    labels = data.train.labels
    return DeviceSkewCorrection(
        skew, {device: class_frequencies(labels[shard], classes) for device, shard in shards.items()}
    )
