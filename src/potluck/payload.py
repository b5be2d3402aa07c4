"""Numbers on the wire."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Payload"]


class Payload(msgspec.Struct, frozen=True):
    """`nbytes` is what is sent; the numpy arrays that hold it are absent where only time is modelled."""

    nbytes: int
    arrays: tuple[Any, ...] = ()
