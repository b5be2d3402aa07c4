"""Numbers as people read them, with a space between number and unit."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.units import format_metric, format_percent, format_seconds

__all__ = [
    "format_bit_rate",
    "format_bytes",
    "format_flops",
    "format_fraction",
    "format_percent",
    "format_seconds",
    "score_texts",
]


def format_bytes(nbytes: float) -> str:
    """`64 B`, `94.6 MB`, `1.2 GB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= 0.9995 * scale:
            return f"{_three_digits(nbytes / scale)} {unit}"
    return f"{nbytes:.0f} B"


def format_bit_rate(bytes_per_s: float) -> str:
    """`640 bit/s`, `20 Mbit/s`, `1.2 Gbit/s`."""
    bits = 8 * bytes_per_s
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= 0.9995 * scale:
            return f"{_three_digits(bits / scale)} {unit}"
    return f"{bits:.0f} bit/s"


def format_flops(flops: float) -> str:
    """`20 MFLOP/s`, `1.23 GFLOP/s`."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if flops >= 0.9995 * scale:
            return f"{_three_digits(flops / scale)} {unit}FLOP/s"
    return f"{flops:.0f} FLOP/s"


def score_texts(score: Mapping[str, float | None], most: int = 4) -> list[str]:
    """`accuracy 95.0 %`, `perplexity 3.142`: the metrics of an evaluation, or the loss if there is no other."""
    known = {name: value for name, value in score.items() if value is not None}
    names = [name for name in known if name != "loss"] or list(known)
    return [f"{name} {format_metric(name, known[name])}" for name in names[:most]]


def format_fraction(part: float, whole: float) -> str:
    """`46 %`, or a dash where the whole is 0."""
    return format_percent(part / whole, 0) if whole > 0 else "–"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.3g}"
