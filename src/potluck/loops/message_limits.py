"""The bounds of what a message may contain: each number, text and list of a message has one of these types.

They are enforced when a message of another process is decoded. What a loop knows better (the layers of its model, the
samples of a device) it checks itself. `tests/worlds/live/test_message_limits.py` goes through all fields of all
messages, so a field without bounds is noticed.
"""

from __future__ import annotations

import math
from typing import Annotated, TypeVar

import msgspec

__all__ = [
    "MAX_LOSS",
    "AnyFloat",
    "BoundedTuple",
    "ByteCount",
    "DeviceName",
    "Duration",
    "Label",
    "Number",
    "ReasonText",
    "RunTime",
    "is_usable_loss",
]

T = TypeVar("T")

MAX_LOSS = 1e30  # beyond it a model has diverged, whatever the task

Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # of a turn, a round, a layer, a version, …
ByteCount = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Duration = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]  # seconds
RunTime = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # seconds since the run began, or of some clock
DeviceName = Annotated[str, msgspec.Meta(max_length=128)]
Label = Annotated[str, msgspec.Meta(max_length=128)]  # the name of a message or a metric
ReasonText = Annotated[str, msgspec.Meta(max_length=8192)]
BoundedTuple = Annotated[tuple[T, ...], msgspec.Meta(max_length=65_536)]
AnyFloat = Annotated[float, msgspec.Meta(extra={"unbounded": "NaN says that a model has diverged; see is_usable_loss"})]


def is_usable_loss(value: float) -> bool:
    """Whether a loss that a device reports may be used in a mean; that of a diverged model may not."""
    return math.isfinite(value) and abs(value) <= MAX_LOSS
