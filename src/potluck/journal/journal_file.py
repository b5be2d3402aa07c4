"""A file of lines that survives a full, read-only or vanished disk: what cannot be written is held in memory.

    append_line ──▶ buffer ──write──▶ file ──fsync──▶ safe
       │ while it cannot be written      ▲
       └──▶ held lines, up to a limit ───┘ once it can

Errors surface where the caller asks for the data to be written, never where a line is appended. With `hold_lines` the
buffer is kept until it was synced, so that the file is whole again even if the disk lost what was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from pathlib import Path
from typing import NamedTuple

__all__ = ["JournalFile"]

_BUFFER_BYTES = 1 << 16
_MAX_UNSYNCED_BYTES = 1 << 20  # kept in memory until they are synced, if lines may have to be written again
_TAIL_BYTES = 256  # by which a file that was gone is recognised
_FREED_FRACTION = 0.25  # of the limit, whenever it is reached


class HeldLine(NamedTuple):
    """A line that could not be written yet."""

    line: bytes
    droppable: bool


class JournalFile:
    """Appends lines at `position`; what the file has after it is cut off."""

    def __init__(self, path: Path, position: int) -> None:
        self._path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._tail = os.pread(self._handle, _TAIL_BYTES, max(0, position - _TAIL_BYTES))
        self._tail = self._tail[: min(position, _TAIL_BYTES)]
        os.ftruncate(self._handle, position)
        os.lseek(self._handle, position, os.SEEK_SET)
        self._base = position  # of the buffer in the file
        self._buffer = bytearray()
        self._written = 0  # bytes of the buffer that are in the file
        self._held: deque[HeldLine] = deque()
        self._held_bytes = 0
        self._limit: int | None = None
        self._reopens = False  # before it is written again
        self.error: OSError | None = None  # why it cannot be written
        self.dropped = 0  # lines
        self.marked_position = position

    def hold_lines(self, limit_bytes: int) -> None:
        """Hold up to so many bytes while the file cannot be written, then drop the oldest droppable lines."""
        self._limit = limit_bytes

    @property
    def is_overfull(self) -> bool:
        """Whether more is held than the limit allows, although everything droppable was dropped."""
        return self._limit is not None and self._held_bytes > self._limit

    @property
    def held_bytes(self) -> int:
        """What would be lost if the process ended now."""
        return len(self._buffer) + self._held_bytes

    @property
    def held_lines(self) -> int:
        return self._buffer.count(b"\n") + len(self._held)

    def position(self) -> int:
        """Length of the file once everything is written."""
        return self._base + len(self._buffer) + self._held_bytes

    def mark_position(self) -> int:
        """Remember the position; `marked_position` follows it where lines before it are dropped."""
        self.marked_position = self.position()
        return self.marked_position

    def append_line(self, line: bytes) -> None:
        self._buffer += line
        if len(self._buffer) - self._written >= _BUFFER_BYTES:
            with contextlib.suppress(OSError):  # raised when the caller asks for the data to be written
                self.write_out()

    def hold_line(self, line: bytes, droppable: bool) -> None:
        """Append a line while there is an error; nothing is tried to be written."""
        self._held.append(HeldLine(line, droppable))
        self._held_bytes += len(line)
        if self.is_overfull:
            self._drop_lines()

    def write_out(self, *, sync: bool = False) -> None:
        """Write all lines, so that readers see them, and with `sync` to the disk itself; raises OSError."""
        try:
            self._reach_file()
            self._write_buffer(sync=sync)
            while self._held:
                self._buffer_held_lines()
                self._write_buffer(sync=sync)
        except OSError as error:
            self.error = OSError(error.errno, error.strerror)  # without the frames that it passed through
            raise
        self.error = None

    def close(self) -> None:
        """Write what can be written, and close."""
        try:
            self.write_out()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without writing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # --- writing ---------------------------------------------------------------------------------------------------

    def _reach_file(self) -> None:
        """Check that the file is still the one at its path: what is written to a deleted file is lost silently."""
        at_path = os.stat(self._path)
        opened = os.fstat(self._handle) if self._handle >= 0 and not self._reopens else None
        if opened is None or (at_path.st_dev, at_path.st_ino) != (opened.st_dev, opened.st_ino):
            self._open_again()

    def _open_again(self) -> None:
        """Continue in the file that is now at the path, after what is known to be in it."""
        self._reopens = True
        self.abandon()
        self._handle = os.open(self._path, os.O_RDWR)
        begin = max(0, self._base - _TAIL_BYTES)
        if os.fstat(self._handle).st_size < self._base or os.pread(self._handle, len(self._tail), begin) != self._tail:
            raise OSError(errno.ESTALE, "another or a shorter file is in its place")
        os.ftruncate(self._handle, self._base)
        os.lseek(self._handle, self._base, os.SEEK_SET)
        self._written = 0
        self._reopens = False

    def _write_buffer(self, *, sync: bool) -> None:
        while self._written < len(self._buffer):
            with memoryview(self._buffer) as view, view[self._written :] as rest:
                self._written += os.write(self._handle, rest)
        if sync or (self._limit is not None and self._written >= _MAX_UNSYNCED_BYTES):
            try:
                os.fsync(self._handle)
            except OSError:
                self._reopens = True  # the kernel may have dropped what it could not write
                raise
        elif self._limit is not None:
            return
        self._forget_buffer()

    def _forget_buffer(self) -> None:
        """What was written need not be written again."""
        self._tail = (self._tail + bytes(self._buffer[-_TAIL_BYTES:]))[-_TAIL_BYTES:]
        self._base += len(self._buffer)
        self._buffer.clear()
        self._written = 0

    # --- holding ---------------------------------------------------------------------------------------------------

    def _buffer_held_lines(self) -> None:
        while self._held and len(self._buffer) - self._written < _BUFFER_BYTES:
            line = self._held.popleft().line
            self._held_bytes -= len(line)
            self._buffer += line

    def _drop_lines(self) -> None:
        """Drop the oldest droppable lines until a fraction of the limit is free."""
        assert self._limit is not None
        excess, moved = self._held_bytes - (1 - _FREED_FRACTION) * self._limit, 0
        kept: deque[HeldLine] = deque()
        begin = self._base + len(self._buffer)
        for held in self._held:
            size = len(held.line)
            if excess > 0 and held.droppable:
                excess -= size
                self.dropped += 1
                self._held_bytes -= size
                moved += size if begin < self.marked_position else 0
            else:
                kept.append(held)
            begin += size
        self._held = kept
        self.marked_position -= moved
