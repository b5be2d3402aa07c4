"""How far a benchmark is and how long it will still take, told on the error stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from potluck.bench.benchmark import BenchmarkPiece

__all__ = ["BenchmarkProgress", "PlainProgress", "RemainingTime", "SpinnerProgress", "choose_progress"]


class BenchmarkProgress(Protocol):
    """Is told what begins and how many seconds are left, and when all is over."""

    def show_piece(self, name: str, place: int, of: int, left_s: float | None) -> None: ...

    def end_display(self) -> None: ...


class RemainingTime:
    """The time left: what the weights say is still to do, at the pace so far."""

    def __init__(self, pieces: Sequence[BenchmarkPiece]) -> None:
        self._left = sum(piece.expected_s for piece in pieces)
        self._done = 0.0
        self._spent = 0.0

    def count_reused(self, piece: BenchmarkPiece) -> None:
        self._left -= piece.expected_s

    def count_measured(self, piece: BenchmarkPiece, seconds: float) -> None:
        self._left -= piece.expected_s
        self._done += piece.expected_s
        self._spent += seconds

    @property
    def seconds_left(self) -> float:
        """Before anything is measured the weights themselves are the best guess."""
        return self._left * (self._spent / self._done if self._done else 1.0)


class PlainProgress:
    """A plain line for each piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = time.perf_counter()

    def show_piece(self, name: str, place: int, of: int, left_s: float | None) -> None:
        left = "" if left_s is None else f", about {format_clock(left_s)} left"
        self._stream.write(f"[{place}/{of}] {name}{left}\n")
        self._stream.flush()

    def end_display(self) -> None:
        self._stream.write(f"done in {format_clock(time.perf_counter() - self._began)}\n")


class SpinnerProgress:
    """A line with a spinner that is written over, for terminals."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._status = Console(file=stream).status("")
        self._status.start()

    def show_piece(self, name: str, place: int, of: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"  about [bold]{format_clock(left_s)}[/] left"
        self._status.update(f"[{place} of {of}] {name}{left}".replace("[", "\\[", 1))

    def end_display(self) -> None:
        self._status.stop()


def choose_progress(stream: TextIO) -> BenchmarkProgress:
    """What suits the stream."""
    return SpinnerProgress(stream) if stream.isatty() else PlainProgress(stream)


def format_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
