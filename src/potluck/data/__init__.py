"""Data sets by name or brought by the user, their batches, and how samples are split over devices."""

from potluck.data.data_splits import Split
from potluck.data.dataset_catalogue import Check, check, info, load, names, parse
from potluck.data.dataset_source import Info, Source
from potluck.data.samples import CropFlip, Dataset, Indices, Samples, Scaling
from potluck.data.split_chart import chart
from potluck.data.tensor_dataset import from_tensors, from_torch

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
