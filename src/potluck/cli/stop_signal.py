"""Ctrl-C: the first stops the run at a point from which it can be resumed, the second ends it at once."""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType
from typing import Any, Self

__all__ = ["StopSignal"]

_NOTICE = b"\nstopping at a safe point; press Ctrl-C again to stop at once\n"


class StopSignal:
    """Whether the user asked to stop; catches SIGINT and SIGTERM while it is entered."""

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._asked

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(self, *error: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # its messages would hide ours
            raise KeyboardInterrupt
        self._asked = True
        os.write(2, _NOTICE)  # signal-safe: the stream objects may be in the middle of a write
