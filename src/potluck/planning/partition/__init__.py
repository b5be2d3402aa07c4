"""Where to cut a chain of layers, and which device gets which part, so that a pipeline's slowest part is fastest."""

from potluck.planning.partition.layout import Devices, Layers, Partition, ShortMemoryError, evaluate
from potluck.planning.partition.plan import partition
from potluck.planning.partition.published import published

__all__ = ["Devices", "Layers", "Partition", "ShortMemoryError", "evaluate", "partition", "published"]
