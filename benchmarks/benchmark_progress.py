"""Shows on stderr how far a benchmark has got and how much time it still needs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from benchmarks.benchmark import BenchmarkPiece

__all__ = ["BenchmarkProgress", "PlainProgress", "RemainingTime", "SpinnerProgress", "choose_progress"]


class BenchmarkProgress(Protocol):
    """A display of the piece that is being measured and of the seconds left."""

    def show_piece(self, name: str, number: int, total: int, left_s: float | None) -> None: ...

    def end_display(self) -> None: ...


class RemainingTime:
    """Estimates the time left: the expected seconds of the remaining pieces, scaled by the speed observed so far."""

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
        """Until a piece is measured, the sum of the expected seconds."""
        return self._left * (self._spent / self._done if self._done else 1.0)


class PlainProgress:
    """One line per piece."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started_at = time.perf_counter()

    def show_piece(self, name: str, number: int, total: int, left_s: float | None) -> None:
        left = "" if left_s is None else f", about {format_clock(left_s)} left"
        self._stream.write(f"[{number}/{total}] {name}{left}\n")
        self._stream.flush()

    def end_display(self) -> None:
        self._stream.write(f"done in {format_clock(time.perf_counter() - self._started_at)}\n")


class SpinnerProgress:
    """One line with a spinner that is overwritten, for terminals."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._status = Console(file=stream).status("")
        self._status.start()

    def show_piece(self, name: str, number: int, total: int, left_s: float | None) -> None:
        left = "" if left_s is None else f"  about [bold]{format_clock(left_s)}[/] left"
        self._status.update(f"[{number} of {total}] {name}{left}".replace("[", "\\[", 1))

    def end_display(self) -> None:
        self._status.stop()


def choose_progress(stream: TextIO) -> BenchmarkProgress:
    """A spinner on a terminal, plain lines elsewhere."""
    return SpinnerProgress(stream) if stream.isatty() else PlainProgress(stream)


def format_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
