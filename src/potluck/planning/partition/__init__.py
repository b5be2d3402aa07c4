"""Where to cut a chain of layers, and which device gets which part, so that a pipeline's slowest part is fastest."""

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
