"""Draws a split as a text chart: a row per device, a column per class, a bar for the number of samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from potluck.data.samples import Indices

__all__ = ["chart"]

_BARS = " ▁▂▃▄▅▆▇█"
_ROWS = 30
_COLUMNS = 50

Counts = npt.NDArray[np.int64]


def chart(assignment: Sequence[Indices], labels: npt.NDArray[np.integer], classes: int | Sequence[str]) -> str:
    """Bars are relative to the fullest cell; beyond 30 devices a sample of them is shown, largest first."""
    number = classes if isinstance(classes, int) else len(classes)
    counts = np.stack([np.bincount(labels[part], minlength=number) for part in assignment])
    cells = _merge_columns(counts)
    rows = _sampled_rows(counts)
    width = len(str(len(counts) - 1))
    lines = [f"{'device':>{width + 6}} {'samples':>8}  {_class_header(number, cells.shape[1])}"]
    lines += [
        f"{row:>{width + 6}} {counts[row].sum():>8,} |{_bar_cells(cells[row], int(cells.max()))}|" for row in rows
    ]
    if len(rows) < len(counts):
        lines.append(f"{len(rows)} of {len(counts)} devices, from the one with most samples to the one with fewest")
    return "\n".join([*lines, _summary_line(counts)])


def _merge_columns(counts: Counts) -> Counts:
    """Add up neighbouring classes until the columns fit the page."""
    if counts.shape[1] <= _COLUMNS:
        return counts
    starts = np.linspace(0, counts.shape[1], _COLUMNS, endpoint=False).astype(np.int64)
    return np.add.reduceat(counts, starts, axis=1)


def _sampled_rows(counts: Counts) -> list[int]:
    if len(counts) <= _ROWS:
        return list(range(len(counts)))
    by_size = np.argsort(-counts.sum(axis=1), kind="stable")
    return [int(by_size[rank]) for rank in np.linspace(0, len(counts) - 1, _ROWS).astype(np.int64)]


def _class_header(classes: int, columns: int) -> str:
    if columns < classes:
        return f"{classes} classes in {columns} columns"
    return "".join(str(number % 10) for number in range(classes))


def _bar_cells(row: Counts, fullest: int) -> str:
    """A cell with at least one sample always shows a bar."""
    heights = -(-row * (len(_BARS) - 1) // max(fullest, 1))
    return "".join(_BARS[height] for height in heights)


def _summary_line(counts: Counts) -> str:
    sizes, kinds = counts.sum(axis=1), (counts > 0).sum(axis=1)
    return f"samples per device {_format_range(sizes)}; classes per device {_format_range(kinds)}"


def _format_range(values: Counts) -> str:
    return f"{values.min():,} to {values.max():,} (median {np.median(values):,.0f})"
