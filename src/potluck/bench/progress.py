"""How far a benchmark is and how long it will still take, told on the error stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from potluck.bench.experiment import Piece

__all__ = ["Forecast", "Lines", "Progress", "Status", "progress_on"]


class Progress(Protocol):
    """Is told what begins and how many seconds are left, and when all is over."""

    def begin(self, name: str, place: int, of: int, left_s: float | None) -> None: ...

    def end(self) -> None: ...


class Forecast:
    """The time left: what the weights say is still to do, at the pace so far."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._left = sum(piece.weight for piece in pieces)
        self._done = 0.0
        self._spent = 0.0

    def reused(self, piece: Piece) -> None:
        self._left -= piece.weight

    def measured(self, piece: Piece, seconds: float) -> None:
        self._left -= piece.weight
        self._done += piece.weight
        self._spent += seconds

    @property
    def seconds_left(self) -> float:
        """Before anything is measured the weights themselves are the best guess."""
        return self._left * (self._spent / self._done if self._done else 1.0)


class Lines:
    """A plain line for each piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.perf_counter()

    def begin(self, name: str, place: int, of: int, left_s: float | None) -> None:
        left = "" if left_s is None else f", about {clock(left_s)} left"
        self._stream.write(f"[{place}/{of}] {name}{left}\n")
        self._stream.flush()

    def end(self) -> None:
        self._stream.write(f"done in {clock(time.perf_counter() - self._began)}\n")


class Status:
    """A line with a spinner that is written over, for terminals."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._status = Console(file=stream).status("")
        self._status.start()

    def begin(self, name: str, place: int, of: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"  about [bold]{clock(left_s)}[/] left"
        self._status.update(f"[{place} of {of}] {name}{left}".replace("[", "\\[", 1))

    def end(self) -> None:
        self._status.stop()


def progress_on(stream: TextIO) -> Progress:
    """What suits the stream."""
    return Status(stream) if stream.isatty() else Lines(stream)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
