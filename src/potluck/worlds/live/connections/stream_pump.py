"""Moves bytes from one socket to another inside the kernel (Linux: splice through a pipe)."""

from __future__ import annotations

import contextlib
import fcntl
import os

__all__ = ["PipePool", "StreamPump"]

_PIPE_BYTES = 1 << 20
_MAX_IDLE_PIPES = 16
_TURN_BYTES = 8 << 20  # that one stream moves before the others have their turn
_FLAGS = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK


class PipePool:
    """Pipes for the streams that have bytes under way; an idle stream needs none."""

    def __init__(self) -> None:
        self._idle: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        if self._idle:
            return self._idle.pop()
        pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # over the user's limit for pipes: the default size works too
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        return pipe

    def give_back(self, pipe: tuple[int, int], *, is_empty: bool) -> None:
        if is_empty and len(self._idle) < _MAX_IDLE_PIPES:
            self._idle.append(pipe)
        else:
            os.close(pipe[0])
            os.close(pipe[1])


class StreamPump:
    """One direction of a connection; the sockets belong to the caller and do not block."""

    def __init__(self, source: int, target: int, pipes: PipePool) -> None:
        self._source = source
        self._target = target
        self._pipes = pipes
        self._pipe: tuple[int, int] | None = None
        self._held_bytes = 0  # in the pipe
        self._source_ended = False

    @property
    def is_finished(self) -> bool:
        """Whether the source has ended and the target has taken all its bytes."""
        return self._source_ended and self._held_bytes == 0

    def move_bytes(self) -> bool:
        """Move what can be moved; returns whether there may be more. OSError if either socket is broken."""
        budget = _TURN_BYTES
        while budget > 0:
            taken, given = self._fill_pipe(), self._drain_pipe()
            if not taken and not given:
                self._release_pipe()
                return False
            budget -= given
        return True

    def close(self) -> None:
        if self._pipe is not None:
            self._pipes.give_back(self._pipe, is_empty=self._held_bytes == 0)
            self._pipe = None

    def _fill_pipe(self) -> int:
        if self._source_ended:
            return 0
        if self._pipe is None:
            self._pipe = self._pipes.take()
        try:
            count = os.splice(self._source, self._pipe[1], _PIPE_BYTES, flags=_FLAGS)
        except BlockingIOError:
            return 0
        self._source_ended = count == 0
        self._held_bytes += count
        return count

    def _drain_pipe(self) -> int:
        if not self._held_bytes or self._pipe is None:
            return 0
        try:
            count = os.splice(self._pipe[0], self._target, self._held_bytes, flags=_FLAGS)
        except BlockingIOError:
            return 0
        self._held_bytes -= count
        return count

    def _release_pipe(self) -> None:
        if self._held_bytes == 0:
            self.close()
