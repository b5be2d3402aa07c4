"""What a transfer carries: a size and, unless only time is modelled, the arrays."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = ["Payload"]


class Payload(msgspec.Struct, frozen=True):
    """`nbytes` is what the link is charged for; `arrays` are the numpy arrays, empty in timing-only runs."""

    nbytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    arrays: Annotated[tuple[Any, ...], msgspec.Meta(max_length=1024)] = ()
