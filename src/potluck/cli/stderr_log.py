"""What goes on is said on stderr, above the picture where there is one."""

from __future__ import annotations

import logging
import sys

__all__ = ["log_to_stderr"]


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what stderr is at that moment: while a picture is drawn, that is not what it was before."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def log_to_stderr(level: int) -> None:
    """Say everything from `level` on, each line with its time."""
    logger = logging.getLogger("potluck")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _StderrHandler)]:
        logger.removeHandler(handler)
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level)
