"""One JSONL file per run: spans, instants and scalars, in the order in which they happened."""

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
    """Appends records to a file, or to nothing, and counts them; `position` is where a checkpoint may cut it."""

    def __init__(self, path: Path | None = None, position: int = 0, tally: JournalTotals | None = None) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._tally = tally
        self._file: BinaryIO | None = None
        if path is not None:
            path.touch()
            if path.stat().st_size < position:
                raise RunError(
                    f"journal {path} is shorter than its checkpoint says; it was cut or belongs to another run"
                )
            self._file = path.open("r+b", buffering=1 << 16)
            self._file.truncate(position)
            self._file.seek(position)

    def write_record(self, record: JournalRecord) -> None:
        if self._tally is not None:
            self._tally.add_record(record)
        if self._file is not None:
            self._file.write(self._encode(record) + b"\n")

    def position(self) -> int:
        """How long the journal is, what is not yet on the disk included."""
        return self._file.tell() if self._file is not None else 0

    def sync_to_disk(self) -> int:
        """Bring all records to the disk and tell how long the journal is."""
        if self._file is None:
            return 0
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def flush_buffer(self) -> None:
        """Let others see what was written so far."""
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
    """The records of a journal, one by one; a torn last line (a crash while writing) is left out."""
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
                raise RunError(f"{path}, line {number}, is not a record: {error}") from None


def read_journal_tail(path: Path, nbytes: int) -> list[Span | Instant | Scalar]:
    """The last records of a journal that may still be written to; torn lines are left out."""
    decode = msgspec.json.Decoder(Span | Instant | Scalar).decode
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - nbytes))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines[(1 if size > nbytes else 0) : -1]:
        with contextlib.suppress(msgspec.DecodeError):
            found.append(decode(line))
    return found
