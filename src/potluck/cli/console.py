"""Where tables go: a console that is as wide as the terminal, or wide enough where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["open_console", "plain_table"]

_WIDTH = 120  # of a file or a pipe


def open_console(*, stderr: bool = False) -> Console:
    """Writes to stdout or stderr; words are taken as they are."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def plain_table(*columns: str) -> Table:
    """A table without lines: its first column to the left, figures to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    return table
