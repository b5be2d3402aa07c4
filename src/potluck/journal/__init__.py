"""The journal of a run: one JSONL file of spans, instants and scalars in chronological order."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from potluck.errors import RunError
from potluck.journal.journal_file import JournalFile
from potluck.journal.journal_reader import (
    RecordDecoder,
    describe_unreadable,
    read_journal,
    read_journal_tail,
    warn_of_unreadable,
)
from potluck.journal.journal_records import Instant, JournalRecord, Scalar, Span, readable_record
from potluck.journal.journal_totals import ACCOUNT, JournalTotals

__all__ = [
    "ACCOUNT",
    "Instant",
    "Journal",
    "JournalRecord",
    "JournalTotals",
    "RecordDecoder",
    "Scalar",
    "Span",
    "describe_unreadable",
    "read_journal",
    "read_journal_tail",
    "warn_of_unreadable",
]

_MAX_SHOWN = 200  # characters of a record in a warning

_log = logging.getLogger("potluck")


class Journal:
    """Appends records to a file, if any, and adds them to the totals; resuming truncates it to `position`.

    Writing a record never fails. While the file cannot be written, records are held in memory; `flush_buffer` and
    `sync_to_disk` raise OSError, and write everything once they can.
    """

    def __init__(self, path: Path | None = None, position: int = 0, totals: JournalTotals | None = None) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._totals = totals
        self._file: JournalFile | None = None
        if path is not None:
            path.touch()
            if path.stat().st_size < position:
                raise RunError(
                    f"journal {path} is shorter than its checkpoint says; it was truncated or belongs to another run"
                )
            self._file = JournalFile(path, position)

    def write_record(self, record: JournalRecord) -> None:
        """Append a record; what its readers could not read (NaN, infinity) is left out, with a warning."""
        if self._file is not None:
            line = self._encode(record)
            if b"null" in line:  # how JSON shows what is not finite, and None
                readable = readable_record(record)
                if readable is not record:
                    _log.warning("a journal record has a number that is not finite: %s", str(record)[:_MAX_SHOWN])
                if readable is None:
                    return
                record, line = readable, self._encode(readable)
            if self._file.error is None:
                self._file.append_line(line + b"\n")
            else:
                self._file.hold_line(line + b"\n", droppable=_is_device_span(record))
        if self._totals is not None:
            self._totals.add_record(record)

    @property
    def file(self) -> JournalFile | None:
        """The file behind this journal, with what it holds in memory; None without one or when closed."""
        return self._file

    def position(self) -> int:
        """Length of the journal in bytes, including what is still buffered."""
        return self._file.position() if self._file is not None else 0

    def mark_position(self) -> int:
        """The position, which the file remembers: it becomes lower where held records before it are dropped."""
        return self._file.mark_position() if self._file is not None else 0

    def sync_to_disk(self) -> int:
        """Write all records to disk; returns the length of the journal in bytes."""
        if self._file is None:
            return 0
        self._file.write_out(sync=True)
        return self._file.position()

    def flush_buffer(self) -> None:
        """Make all records visible to readers of the file."""
        if self._file is not None:
            self._file.write_out()

    def close(self) -> None:
        """Write all records and close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            file.close()

    def abandon(self) -> None:
        """Close the file without what could not be written to it."""
        if self._file is not None:
            self._file.abandon()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_device_span(record: JournalRecord) -> bool:
    """How long a device was busy with something: detail that a journal can do without."""
    return isinstance(record, Span) and record.node != "coordinator"
