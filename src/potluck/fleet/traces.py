"""Traces: how a level (speed, availability, bandwidth) changes over time, as a sequence of constant intervals.

A trace yields `(until, level)` pairs with increasing `until`; the level holds from the previous `until` (initially 0)
up to this one. The last interval, if there is one, ends at infinity. The same generator gives the same intervals.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from potluck.settings import Part, doc
from potluck.units import Seconds

__all__ = ["ConstantTrace", "CsvTrace", "LevelInterval", "PiecewiseTrace", "RandomWalkTrace", "Trace"]

Level = Annotated[float, msgspec.Meta(ge=0.0)]
LevelInterval = tuple[float, float]  # until, level


class Trace(Part, frozen=True, kw_only=True):
    """A relative level over time; 1.0 is nominal."""

    def level_intervals(self, rng: np.random.Generator) -> Iterator[LevelInterval]:
        raise NotImplementedError

    @property
    def constant_level(self) -> float | None:
        """The level if it never changes, otherwise None."""
        return None


class ConstantTrace(Trace, frozen=True, kw_only=True, tag="constant"):
    """The same level at all times."""

    level: Annotated[Level, doc("The level.")] = 1.0

    def level_intervals(self, rng: np.random.Generator) -> Iterator[LevelInterval]:
        yield math.inf, self.level

    @property
    def constant_level(self) -> float | None:
        return self.level


class PiecewiseTrace(Trace, frozen=True, kw_only=True, tag="piecewise"):
    """Levels that change at given times."""

    at: Annotated[tuple[Seconds, ...], doc("Times at which the levels begin: the first is 0, the others rise.")]
    levels: Annotated[tuple[Level, ...], doc("The level from each of these times on.")]
    repeat: Annotated[
        Seconds | None, doc("Time after which the sequence starts again; without it the last level stays.")
    ] = None

    def __post_init__(self) -> None:
        if not self.at or len(self.at) != len(self.levels):
            raise ValueError(
                f"`at` and `levels` need the same length of at least 1, got {len(self.at)} and {len(self.levels)}"
            )
        if self.at[0] > 0 or any(b <= a for a, b in pairwise(self.at)):
            raise ValueError("`at` must start at 0 and rise")
        if self.repeat is not None and self.repeat <= self.at[-1]:
            raise ValueError(f"`repeat` must be later than the last of `at`, {self.at[-1]}")
        if self.repeat is not None and not any(self.levels):
            raise ValueError("a repeating trace needs a level above 0; leave out `repeat` for a device that stops")

    def level_intervals(self, rng: np.random.Generator) -> Iterator[LevelInterval]:
        ends = [float(at) for at in self.at[1:]]
        if self.repeat is None:
            yield from zip([*ends, math.inf], self.levels, strict=True)
            return
        start = 0.0
        while True:
            yield from ((start + end, level) for end, level in zip([*ends, self.repeat], self.levels, strict=True))
            start += self.repeat


class RandomWalkTrace(Trace, frozen=True, kw_only=True, tag="random-walk"):
    """A level that moves by a random step at regular intervals and is reflected at its bounds."""

    low: Annotated[Level, doc("Lower bound of the level.")] = 0.3
    high: Annotated[Level, doc("Upper bound of the level.")] = 1.0
    step: Annotated[Level, doc("Largest change in one interval.")] = 0.2
    every: Annotated[Seconds, doc("Length of an interval.")] = Seconds(10)

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"`low` must be below `high`, got {self.low} and {self.high}")
        if not self.every > 0:
            raise ValueError("`every` must be above 0")

    def level_intervals(self, rng: np.random.Generator) -> Iterator[LevelInterval]:
        level, until = rng.uniform(self.low, self.high), 0.0
        while True:
            until += self.every
            yield until, level
            level = _reflect_level(level + rng.uniform(-self.step, self.step), self.low, self.high)


class CsvTrace(Trace, frozen=True, kw_only=True, tag="csv"):
    """Levels read from a CSV file with two columns, seconds and level; a header line is allowed."""

    file: Annotated[str, doc("Path of the file, relative to the file that names it.")]
    rows: Annotated[
        tuple[tuple[float, ...], ...],
        doc("What was read, stored so that the saved job does not need the file; not to be set by hand."),
    ] = ()

    def __post_init__(self) -> None:
        pairs = self._check_levels([(row[0], row[-1]) for row in self.rows]) if self.rows else self._read_csv()
        msgspec.structs.force_setattr(self, "rows", tuple(pairs))

    def level_intervals(self, rng: np.random.Generator) -> Iterator[LevelInterval]:
        ends = [at for at, _ in self.rows[1:]] + [math.inf]
        yield from zip(ends, (level for _, level in self.rows), strict=True)

    def _read_csv(self) -> list[LevelInterval]:
        try:
            with Path(self.file).open(newline="") as lines:
                rows = [row for row in csv.reader(lines) if row]
        except OSError as error:
            raise ValueError(f"cannot read trace file {self.file!r}: {error.strerror}") from None
        except (UnicodeDecodeError, csv.Error):
            raise ValueError(f"trace file {self.file!r} is not a CSV file") from None
        if rows and not _is_number(rows[0][0]):
            rows = rows[1:]
        if not rows or not all(len(row) == 2 and _is_number(row[0]) and _is_number(row[1]) for row in rows):
            raise ValueError(f"trace file {self.file!r} needs two columns of numbers: seconds, level")
        return self._check_levels([(float(at), float(level)) for at, level in rows])

    def _check_levels(self, pairs: list[LevelInterval]) -> list[LevelInterval]:
        if pairs[0][0] < 0 or any(b[0] <= a[0] for a, b in pairwise(pairs)) or min(level for _, level in pairs) < 0:
            raise ValueError(
                f"trace file {self.file!r}: seconds must rise from 0 or later and levels must not be negative"
            )
        return pairs


def _reflect_level(level: float, low: float, high: float) -> float:
    if level < low:
        return min(2 * low - level, high)
    if level > high:
        return max(2 * high - level, low)
    return level


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
