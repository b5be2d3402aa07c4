"""Data sets by name or brought by the user, their batches, and how samples are split over devices."""

from potluck.data.data_splits import Split
from potluck.data.dataset_catalogue import Check, check, info, load, names, parse
from potluck.data.dataset_source import Info, Source
from potluck.data.samples import CropFlip, Dataset, Indices, Samples, SampleSet, Scaling
from potluck.data.split_chart import chart
from potluck.data.tensor_dataset import as_dataset, from_tensors, from_torch
from potluck.data.text_tokenizers import TextTokenizer
from potluck.data.token_blocks import TokenBlocks
from potluck.data.token_targets import shift_targets

__all__ = [
    "Check",
    "CropFlip",
    "Dataset",
    "Indices",
    "Info",
    "SampleSet",
    "Samples",
    "Scaling",
    "Source",
    "Split",
    "TextTokenizer",
    "TokenBlocks",
    "as_dataset",
    "chart",
    "check",
    "from_tensors",
    "from_torch",
    "info",
    "load",
    "names",
    "parse",
    "shift_targets",
]
