"""What is trained on: data sets by name or of one's own, their batches, and who holds which samples."""

from potluck.data.augment import CropFlip
from potluck.data.catalogue import Check, check, info, load, names, parse
from potluck.data.chart import chart
from potluck.data.own import from_tensors, from_torch
from potluck.data.samples import Dataset, Indices, Samples, Scaling
from potluck.data.source import Info, Source
from potluck.data.splits import Split

__all__ = [
    "Check",
    "CropFlip",
    "Dataset",
    "Indices",
    "Info",
    "Samples",
    "Scaling",
    "Source",
    "Split",
    "chart",
    "check",
    "from_tensors",
    "from_torch",
    "info",
    "load",
    "names",
    "parse",
]
