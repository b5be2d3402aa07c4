"""Output to the terminal: consoles, plain tables and log lines."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from potluck.text_escaping import escape_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["log_to_stderr", "open_console", "plain_table"]

_WIDTH = 120  # of a file or a pipe


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr that adds no highlighting, as wide as the terminal or 120 columns without one."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def plain_table(*columns: str) -> Table:
    """A table without lines; the first column is left-aligned, the others are right-aligned."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Looks up stderr for every record: while a live table is drawn, stderr is replaced to print above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class _EscapingFormatter(logging.Formatter):
    """Control characters of a message do not reach the terminal, wherever its text came from."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_text(super().format(record), keep_lines=True)


def log_to_stderr(level: int) -> None:
    """Log everything from `level` on to stderr, each line with its time."""
    logger = logging.getLogger("potluck")
    for handler in [handler for handler in logger.handlers if isinstance(handler, _StderrHandler)]:
        logger.removeHandler(handler)
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(_EscapingFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level)
