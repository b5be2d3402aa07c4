"""Partitions a chain of layers over devices so that the period of the pipeline is minimal."""

from potluck.planning.partition.ftpipehd_recurrence import ftpipehd_partition
from potluck.planning.partition.partition_planner import plan_partition
from potluck.planning.partition.pipeline_partition import (
    DeviceSpecs,
    LayerSpecs,
    PipelinePartition,
    ShortMemoryError,
    evaluate_partition,
)

__all__ = [
    "DeviceSpecs",
    "LayerSpecs",
    "PipelinePartition",
    "ShortMemoryError",
    "evaluate_partition",
    "ftpipehd_partition",
    "plan_partition",
]
