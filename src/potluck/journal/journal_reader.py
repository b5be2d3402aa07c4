"""Reads journals. A line that is not a record never makes a run unreadable: it is skipped and counted.

Such lines come from disks that fail and, in older versions, from devices that reported NaN, which JSON writes as null.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from potluck.errors import PotluckWarning, RunError
from potluck.journal.journal_records import Instant, Scalar, Span
from potluck.journal.record_checks import find_record_problem

__all__ = [
    "RecordDecoder",
    "complete_lines",
    "describe_unreadable",
    "read_journal",
    "read_journal_tail",
    "warn_of_unreadable",
]

MAX_LINE_BYTES = 16 << 20  # of a record; a round of 100,000 devices takes less


class RecordDecoder:
    """Decodes lines of a journal and counts those that are no records."""

    def __init__(self) -> None:
        self.unreadable = 0
        self._decode = msgspec.json.Decoder(Span | Instant | Scalar).decode

    def decode_line(self, line: bytes | None) -> Span | Instant | Scalar | None:
        """The record in a line, or None, which is counted; a line that was too long to be read is None."""
        try:
            record: Span | Instant | Scalar | None = None if line is None else self._decode(line)
            if record is not None and find_record_problem(record) is None:
                return record
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        self.unreadable += 1
        return None


def describe_unreadable(count: int) -> str:
    """How many lines of a journal were skipped, in words; empty if none was."""
    if not count:
        return ""
    lines = "1 line" if count == 1 else f"{count:,} lines"
    return f"{lines} of the journal cannot be read and {'is' if count == 1 else 'are'} skipped"


def warn_of_unreadable(folder: Path, count: int) -> None:
    """Say once how many lines of a run's journal were skipped, if any."""
    if count:
        warnings.warn(f"{folder}: {describe_unreadable(count)}", PotluckWarning, stacklevel=3)


def read_journal(path: Path, decoder: RecordDecoder | None = None) -> Iterator[Span | Instant | Scalar]:
    """Yields the records of a journal. An incomplete last line (a crash while writing) is skipped without counting."""
    decoder = decoder or RecordDecoder()
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunError(f"cannot read journal {path}: {error.strerror}") from None
    with file:
        for line, _ in complete_lines(file):
            record = decoder.decode_line(line)
            if record is not None:
                yield record


def read_journal_tail(path: Path, nbytes: int, decoder: RecordDecoder | None = None) -> list[Span | Instant | Scalar]:
    """The records in the last `nbytes` of a journal that may still be written; its first line may be incomplete too."""
    decoder = decoder or RecordDecoder()
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - nbytes))
            lines = file.read(nbytes).split(b"\n")
    except OSError:
        return []
    records = [decoder.decode_line(line) for line in lines[(1 if size > nbytes else 0) : -1]]
    return [record for record in records if record is not None]


def complete_lines(file: BinaryIO) -> Iterator[tuple[bytes | None, int]]:
    """Each line that has its end, and its length in bytes; None instead of a line that is too long for a record."""
    while line := file.readline(MAX_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line, len(line)
            continue
        length = len(line)
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
            length += len(line)
        if line:
            yield None, length
