"""Exports a journal for other tools: CSV tables, JSON lines, TensorBoard event files."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from potluck.errors import UserError
from potluck.journal import Instant, RecordDecoder, Scalar, Span, read_journal, warn_of_unreadable
from potluck.journal.journal_reader import complete_lines
from potluck.report.run_folder import RunFolder

__all__ = ["FORMATS", "export_run"]

_TABLES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    Span: ("spans", ("node", "name", "start", "end")),
    Instant: ("instants", ("node", "name", "at")),
    Scalar: ("scalars", ("node", "name", "at", "value")),
}


def export_run(run: RunFolder, to: str, folder: Path) -> list[Path]:
    """Export a run to a folder in this format; returns the paths of the files."""
    if to not in FORMATS:
        raise UserError(f"--to {to!r} is not a format; choose from {', '.join(FORMATS)}")
    folder.mkdir(parents=True, exist_ok=True)
    return FORMATS[to](run, folder)


def _to_csv(run: RunFolder, folder: Path) -> list[Path]:
    """One table per kind of record; every field that occurs becomes a column."""
    decoder = RecordDecoder()
    columns = _field_columns(read_journal(run.journal, decoder))
    warn_of_unreadable(run.path, decoder.unreadable)
    paths = {kind: folder / f"{name}.csv" for kind, (name, _) in _TABLES.items() if kind in columns}
    files = {kind: path.open("w", newline="", encoding="utf-8") for kind, path in paths.items()}
    try:
        writers = {kind: csv.writer(file) for kind, file in files.items()}
        for kind, writer in writers.items():
            writer.writerow([*_TABLES[kind][1], *columns[kind]])
        for record in read_journal(run.journal):
            kind = type(record)
            fixed = [getattr(record, name) for name in _TABLES[kind][1]]
            writers[kind].writerow(
                [*map(_csv_cell, fixed), *(_csv_cell(record.fields.get(name)) for name in columns[kind])]
            )
    finally:
        for file in files.values():
            file.close()
    return list(paths.values())


def _field_columns(records: Iterable[Span | Instant | Scalar]) -> dict[type, dict[str, None]]:
    columns: dict[type, dict[str, None]] = {}
    for record in records:
        columns.setdefault(type(record), {}).update(dict.fromkeys(record.fields))
    return columns


def _csv_cell(value: Any) -> Any:
    """The value of a cell; text that a spreadsheet would read as a formula is prefixed with a quote."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def _to_jsonl(run: RunFolder, folder: Path) -> list[Path]:
    path = folder / f"{run.name}.jsonl"
    if path.resolve() == run.journal.resolve():
        raise UserError(f"-o {folder}: this is the folder of the journal itself; choose another one")
    decoder = RecordDecoder()
    with run.journal.open("rb") as journal, path.open("wb") as out:
        out.writelines(line for line, _ in complete_lines(journal) if line and decoder.decode_line(line) is not None)
    warn_of_unreadable(run.path, decoder.unreadable)
    return [path]


def _to_tensorboard(run: RunFolder, folder: Path) -> list[Path]:
    """Scalars by name, those of devices as device/name; the step is the round."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        raise UserError("--to tensorboard needs TensorBoard; install it with: pip install tensorboard") from None
    writer = EventFileWriter(str(folder))
    decoder = RecordDecoder()
    for index, scalar in enumerate(_read_scalars(run.journal, decoder)):
        tag = scalar.name if scalar.node == "coordinator" else f"{scalar.node}/{scalar.name}"
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=scalar.value)])
        writer.add_event(Event(wall_time=scalar.at, step=int(scalar.fields.get("round", index)), summary=summary))
    writer.close()
    warn_of_unreadable(run.path, decoder.unreadable)
    return sorted(folder.glob("events.out.tfevents.*"))


def _read_scalars(journal: Path, decoder: RecordDecoder) -> Iterator[Scalar]:
    return (record for record in read_journal(journal, decoder) if isinstance(record, Scalar))


FORMATS: Mapping[str, Callable[[RunFolder, Path], list[Path]]] = {
    "csv": _to_csv,
    "jsonl": _to_jsonl,
    "tensorboard": _to_tensorboard,
}
