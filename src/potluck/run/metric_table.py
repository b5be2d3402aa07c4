"""The figures of a run, round by round, as a small table that needs no other library."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from potluck.journal import RecordDecoder, Scalar
from potluck.journal.journal_reader import complete_lines

__all__ = ["MetricTable", "read_run_scalars"]

_FIRST_COLUMNS = ("round", "time_s", "bytes", "samples")
_SHOWN_ROWS = 10

Row = dict[str, float]


class MetricTable:
    """One row for each round that has figures; a row has only the columns that were measured.

    `loss` is that of training; what was measured on held-out data is called `test_loss`, `test_accuracy` and so on.
    `better` says of a metric whether "higher" or "lower" is better, where the task does.
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = (), better: Mapping[str, str] | None = None) -> None:
        self.rows: list[Row] = [dict(row) for row in rows]
        self.better = dict(better or {})

    @staticmethod
    def from_scalars(scalars: Iterable[Scalar]) -> MetricTable:
        """The figures that a coordinator recorded."""
        kept = list(scalars)
        losses = [scalar.fields.get("round", 0) for scalar in kept if scalar.name == "loss"]
        # A training loss carries the number of its round, which counts from 0, or of the batches so far.
        shift = 1 if losses and min(losses) == 0 else 0
        rows: dict[int, Row] = {}
        for scalar in kept:
            fields = scalar.fields
            round = int(fields.get("round", 0)) + (shift if scalar.name == "loss" else 0)
            row = rows.setdefault(round, {"round": round})
            row["time_s"] = scalar.at
            known = ("bytes", "samples") if round == fields.get("round") else ("bytes",)
            row.update({name: fields[name] for name in known if name in fields})
            row[scalar.name] = scalar.value
        better = {scalar.name: str(scalar.fields["better"]) for scalar in kept if "better" in scalar.fields}
        return MetricTable([rows[round] for round in sorted(rows)], better)

    @property
    def columns(self) -> list[str]:
        """The names of all columns."""
        named = dict.fromkeys(name for row in self.rows for name in row)
        return [
            *(name for name in _FIRST_COLUMNS if name in named),
            *(name for name in sorted(named, key=lambda name: name != "loss") if name not in _FIRST_COLUMNS),
        ]

    @property
    def names(self) -> list[str]:
        """The columns that were measured: the training loss and the metrics."""
        return [name for name in self.columns if name not in _FIRST_COLUMNS]

    def to_dicts(self) -> list[Row]:
        """The rows, as `pandas.DataFrame` takes them."""
        return [dict(row) for row in self.rows]

    def series(self, name: str) -> tuple[list[float], list[float]]:
        """The rounds and the values of a column, where it was measured."""
        rows = [row for row in self.rows if name in row]
        return [row["round"] for row in rows], [row[name] for row in rows]

    def __getitem__(self, name: str) -> list[float | None]:
        """A column, None where it was not measured."""
        if name not in self.columns:
            raise KeyError(f"{name!r} is none of {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        lines = [self.columns, *self._shown_cells()]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        padded = ([cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
        return "\n".join("  ".join(line) for line in padded)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in self._shown_cells()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _shown_cells(self) -> list[list[str]]:
        """The first and the last rows as text."""
        lines = [[_cell(row.get(name)) for name in self.columns] for row in self.rows]
        if len(lines) <= _SHOWN_ROWS:
            return lines
        half = _SHOWN_ROWS // 2
        return [*lines[:half], ["…"] * len(self.columns), *lines[-half:]]


def _cell(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def read_run_scalars(journal: Path) -> list[Scalar]:
    """What the coordinator measured, from a journal; other records are not decoded."""
    decoder = RecordDecoder()
    with journal.open("rb") as file:
        records = [
            decoder.decode_line(line)
            for line, _ in complete_lines(file)
            if line is not None and line.startswith(b'{"kind":"scalar","node":"coordinator"')
        ]
    return [record for record in records if isinstance(record, Scalar)]
