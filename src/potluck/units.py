"""Quantities with units, parsed and printed as people write them: `20 Mbit/s`, `35 ms`, `4 GiB`, `2 GFLOP/s`.

Each quantity is a float in its base unit, so arithmetic needs no conversion; the type only says which
unit that is, how to parse it and how to print it. A bare number is in the base
unit, except for a bandwidth, which needs its unit: a bare number might be bits or bytes.
"""

from __future__ import annotations

import math
import re
from typing import ClassVar, Self

__all__ = [
    "Bytes",
    "BytesPerSecond",
    "FlopsPerSecond",
    "Quantity",
    "Seconds",
    "format_metric",
    "format_percent",
    "format_seconds",
]

_QUANTITY = re.compile(r"\s*([-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([^\s0-9].*?)?\s*")
_FRACTION_METRICS = {"accuracy", "top-5", "f1", "mean-iou"}


class Quantity(float):
    """A non-negative number with a unit."""

    unit: ClassVar[str]
    units: ClassVar[dict[str, float]]
    example: ClassVar[str]
    requires_unit: ClassVar[bool] = False

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse `20 Mbit/s`, or a number in the base unit; ValueError says what is allowed."""
        if isinstance(text, bool) or not isinstance(text, int | float | str):
            raise ValueError(f"{text!r} is not a quantity such as {cls.example!r}")
        number, unit = (text, "") if isinstance(text, int | float) else cls._split_unit(text)
        if not unit:
            is_clear = isinstance(text, cls) or number == 0 or number == math.inf
            if cls.requires_unit and not is_clear:
                raise ValueError(f"{text!r} has no unit; write {cls.example!r}, or another of {', '.join(cls.units)}")
            unit = cls.unit
        scale = cls.units.get(unit)
        if scale is None:
            raise ValueError(f"unknown unit {unit!r}; use one of {', '.join(cls.units)}, as in {cls.example!r}")
        try:
            value = float(number) * scale
        except OverflowError:
            raise ValueError(
                f"a number of {len(str(number))} digits is too large; write a quantity such as {cls.example!r}"
            ) from None
        if not value >= 0:
            raise ValueError(f"{text!r} must not be negative")
        return cls(value)

    @classmethod
    def _split_unit(cls, text: str) -> tuple[float, str]:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            if text.strip() == "unlimited":
                return math.inf, cls.unit
            raise ValueError(f"{text!r} is not a quantity such as {cls.example!r}")
        return float(match[1]), match[2] or ""

    def __str__(self) -> str:
        """The shortest text that parses to exactly the same number."""
        if math.isinf(self):
            return "unlimited"
        for unit, scale in sorted(self.units.items(), key=lambda item: -item[1]):
            number = f"{float(self) / scale:.6g}"
            if float(self) >= scale and float(number) * scale == float(self):
                return f"{number} {unit}"
        return f"{float(self)!r} {self.unit}"


class Seconds(Quantity):
    unit = "s"
    units: ClassVar[dict[str, float]] = {
        "s": 1.0,
        "us": 1e-6,
        "µs": 1e-6,
        "ms": 1e-3,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
    }
    example = "35 ms"


class Bytes(Quantity):
    unit = "B"
    units: ClassVar[dict[str, float]] = {
        "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
        "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
    }  # fmt: skip
    example = "4 GiB"


class BytesPerSecond(Quantity):
    unit = "B/s"
    units: ClassVar[dict[str, float]] = {
        "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "KiB/s": 2.0**10, "MiB/s": 2.0**20, "GiB/s": 2.0**30,
        "bit/s": 0.125, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6,
    }  # fmt: skip
    example = "20 Mbit/s"
    requires_unit = True


class FlopsPerSecond(Quantity):
    unit = "FLOP/s"
    units: ClassVar[dict[str, float]] = {"FLOP/s": 1.0, "kFLOP/s": 1e3, "MFLOP/s": 1e6, "GFLOP/s": 1e9, "TFLOP/s": 1e12}
    example = "2 GFLOP/s"


def format_seconds(value: float) -> str:
    """`45 µs`, `350 ms`, `14.3 s`, `2 min 05 s`, `3 h 12 min`."""
    if 0 < value < 0.9995e-3:
        return f"{value * 1e6:.3g} µs"
    if 0 < value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 99.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def format_percent(fraction: float | None, digits: int = 1) -> str:
    """`95.0 %`, or a dash for None."""
    return "–" if fraction is None else f"{100 * fraction:.{digits}f} %"


def format_metric(name: str, value: float) -> str:
    """`95.0 %` of a metric that is a fraction, else `3.142`."""
    return format_percent(value) if name in _FRACTION_METRICS else f"{value:.4g}"
