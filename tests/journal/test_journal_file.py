from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from potluck.journal import Instant, Journal, JournalRecord, Scalar, Span, read_journal
from potluck.journal.journal_file import JournalFile

LINE = b"x" * 99 + b"\n"


class FailingDisk:
    """Makes calls of the operating system fail, or write only so many bytes in all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free_bytes: int | None = None
        self.fails_sync = False
        self._write, self._fsync = os.write, os.fsync
        monkeypatch.setattr(os, "write", self._limited_write)
        monkeypatch.setattr(os, "fsync", self._failing_fsync)

    def _limited_write(self, handle: int, data: memoryview) -> int:
        if self.free_bytes is None:
            return self._write(handle, data)
        if self.free_bytes == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._write(handle, bytes(data)[: self.free_bytes])
        self.free_bytes -= written
        return written

    def _failing_fsync(self, handle: int) -> None:
        if self.fails_sync:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(handle)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


def _records(count: int) -> list[JournalRecord]:
    return [Instant("a", "happened", float(number)) for number in range(count)]


@pytest.mark.parametrize("free_bytes", [0, 1, 70, 1000])
def test_a_journal_is_whole_and_in_order_after_an_outage(failing: FailingDisk, tmp_path: Path, free_bytes: int) -> None:
    path, records = tmp_path / "journal", _records(60)
    journal = Journal(path)
    for number, record in enumerate(records):
        if number == 20:
            failing.free_bytes = free_bytes
        if number == 40:
            with pytest.raises(OSError, match="No space"):
                journal.flush_buffer()
        journal.write_record(record)
    failing.free_bytes = None
    position = journal.sync_to_disk()
    journal.close()
    assert list(read_journal(path)) == records
    assert position == path.stat().st_size


def test_what_was_not_synced_is_written_again_after_a_failed_sync(failing: FailingDisk, tmp_path: Path) -> None:
    path, records = tmp_path / "journal", _records(9)
    journal = Journal(path)
    assert journal.file is not None
    journal.file.hold_lines(1 << 20)
    for record in records[:3]:
        journal.write_record(record)
    journal.sync_to_disk()
    for record in records[3:6]:
        journal.write_record(record)
    failing.fails_sync = True
    with pytest.raises(OSError, match="Input/output"):
        journal.sync_to_disk()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]) + b"torn")  # what the disk has of it
    failing.fails_sync = False
    for record in records[6:]:
        journal.write_record(record)
    journal.sync_to_disk()
    journal.close()
    assert list(read_journal(path)) == records


def test_another_file_in_its_place_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.write_record(_records(1)[0])
    journal.flush_buffer()
    path.rename(tmp_path / "gone")
    for content in (b"", b"y" * 500):
        path.write_bytes(content)
        journal.write_record(_records(1)[0])
        with pytest.raises(OSError, match="another or a shorter file"):
            journal.flush_buffer()
        assert path.read_bytes() == content
    (tmp_path / "gone").replace(path)
    journal.flush_buffer()
    journal.close()
    assert len(list(read_journal(path))) == 3


def test_device_spans_are_dropped_first_and_counted(failing: FailingDisk, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    assert journal.file is not None
    journal.file.hold_lines(20_000)
    failing.free_bytes = 0
    journal.write_record(_records(1)[0])
    with pytest.raises(OSError, match="No space"):
        journal.flush_buffer()
    for number in range(1000):
        journal.write_record(Span("d-1", "compute", number, number + 0.5, {"round": number}))
        if number % 10 == 0:
            journal.write_record(Scalar("coordinator", "loss", number, 1.0))
            journal.mark_position()
        assert journal.file.held_bytes <= 20_200
    assert not journal.file.is_overfull
    failing.free_bytes = None
    journal.flush_buffer()
    marked, dropped = journal.file.marked_position, journal.file.dropped
    journal.close()
    written = list(read_journal(path))
    spans = [record for record in written if isinstance(record, Span)]
    assert len([record for record in written if isinstance(record, Scalar)]) == 100
    assert dropped == 1000 - len(spans) > 0
    assert [span.start for span in spans] == list(range(dropped, 1000)), "the newest are kept"
    line_before_mark = path.read_bytes()[:marked].splitlines()[-1]
    assert (b'"loss"' in line_before_mark, b"990" in line_before_mark) == (True, True)


def test_a_file_whose_lines_cannot_be_dropped_is_overfull(failing: FailingDisk, tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal", 0)
    file.hold_lines(1000)
    failing.free_bytes = 0
    file.append_line(LINE)
    with pytest.raises(OSError, match="No space"):
        file.write_out()
    for number in range(12):
        assert file.is_overfull == (number > 10)
        file.hold_line(LINE, droppable=False)
    assert (file.is_overfull, file.dropped) == (True, 0)
    file.abandon()


def test_memory_is_flat_while_records_are_synced(tmp_path: Path) -> None:
    file = JournalFile(tmp_path / "journal", 0)
    file.hold_lines(1 << 30)
    for _ in range(50_000):
        file.append_line(LINE)
        assert file.held_bytes < 2 << 20
    file.close()
    assert (tmp_path / "journal").stat().st_size == 50_000 * len(LINE)
