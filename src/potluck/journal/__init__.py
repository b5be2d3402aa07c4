"""The journal of a run: one JSONL file of spans, instants and scalars in chronological order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from potluck.errors import RunError
from potluck.journal.journal_records import Instant, JournalRecord, Scalar, Span
from potluck.journal.journal_totals import ACCOUNT, JournalTotals

__all__ = [
    "ACCOUNT",
    "Instant",
    "Journal",
    "JournalRecord",
    "JournalTotals",
    "Scalar",
    "Span",
    "read_journal",
    "read_journal_tail",
]


class Journal:
    """Appends records to a file, if any, and adds them to the totals; resuming truncates it to `position`."""

    def __init__(self, path: Path | None = None, position: int = 0, totals: JournalTotals | None = None) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._totals = totals
        self._file: BinaryIO | None = None
        if path is not None:
            path.touch()
            if path.stat().st_size < position:
                raise RunError(
                    f"journal {path} is shorter than its checkpoint says; it was truncated or belongs to another run"
                )
            self._file = path.open("r+b", buffering=1 << 16)
            self._file.truncate(position)
            self._file.seek(position)

    def write_record(self, record: JournalRecord) -> None:
        if self._totals is not None:
            self._totals.add_record(record)
        if self._file is not None:
            self._file.write(self._encode(record) + b"\n")

    def position(self) -> int:
        """Length of the journal in bytes, including what is still buffered."""
        return self._file.tell() if self._file is not None else 0

    def sync_to_disk(self) -> int:
        """Write all records to disk; returns the length of the journal in bytes."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def flush_buffer(self) -> None:
        """Make all records visible to readers of the file."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> Iterator[Span | Instant | Scalar]:
    """Yields the records of a journal; an incomplete last line (a crash while writing) is skipped."""
    decode = msgspec.json.Decoder(Span | Instant | Scalar).decode
    try:
        lines = path.open("rb")
    except OSError as error:
        raise RunError(f"cannot read journal {path}: {error.strerror}") from None
    with lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decode(line)
            except msgspec.DecodeError as error:
                raise RunError(f"{path}, line {number}: not a journal record: {error}") from None


def read_journal_tail(path: Path, nbytes: int) -> list[Span | Instant | Scalar]:
    """The records in the last `nbytes` of a journal that may still be written; incomplete lines are skipped."""
    decode = msgspec.json.Decoder(Span | Instant | Scalar).decode
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - nbytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    records = []
    for line in lines[(1 if size > nbytes else 0) : -1]:
        with contextlib.suppress(msgspec.DecodeError):
            records.append(decode(line))
    return records
