"""What a span is about, told by its name: computing, receiving, sending, repairing, awaiting data or something else."""

from __future__ import annotations

__all__ = ["LANES", "lane_index"]

LANES = ("compute", "receive", "send", "recover", "stream", "other", "round")

_NAMES = {
    "compute": "compute",
    "train": "compute",
    "forward": "compute",
    "backward": "compute",
    "pull": "receive",
    "receive": "receive",
    "fetch": "receive",
    "push": "send",
    "send": "send",
    "replicate": "send",
    "recover": "recover",
    "settle": "recover",
    "stream": "stream",
    "round": "round",
}


def lane_index(name: str) -> int:
    """The place in LANES of a span of this name."""
    return LANES.index(_NAMES.get(name, "other"))
