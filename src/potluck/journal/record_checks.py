"""Checks that a record can be counted with: its times are possible, and its known fields are of the right kind.

A journal's reader skips a record that fails, so that totals and charts need no checks of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from potluck.journal.journal_records import Instant, Scalar, Span

__all__ = ["find_record_problem"]

_MAX_TIME_S = 1e12  # thirty thousand years
_MAX_QUANTITY = 1e24
_MAX_INTEGER = 2**30  # a chart keeps differences of them in 32 bits


def find_record_problem(record: Span | Instant | Scalar) -> str | None:
    """What is wrong with a record, by the name of its field; None if nothing is."""
    if isinstance(record, Span):
        times = abs(record.start) <= _MAX_TIME_S and abs(record.end) <= _MAX_TIME_S
    else:
        times = abs(record.at) <= _MAX_TIME_S
    if not times:  # not a number fails too
        return "time"
    checks = _INSTANT_CHECKS if isinstance(record, Instant) else _CHECKS
    for name, value in record.fields.items():
        check = checks.get(name)
        if check is not None and not check(value):
            return name
    return "value" if isinstance(record, Scalar) and record.value != record.value else None


def _is_quantity(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _MAX_QUANTITY


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < _MAX_INTEGER


def _is_layer_range(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(_is_integer, value))


def _are_integers(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(map(_is_integer, value)))


def _are_names(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(isinstance(name, str) for name in value))


def _are_turns(value: Any) -> bool:
    """Of the devices of a round: each entry begins with a name."""
    if not isinstance(value, list | tuple):
        return False
    entries = [entry for entry in value if isinstance(entry, list | tuple)]
    return all(entry and isinstance(entry[0], str) for entry in entries)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "bytes": _is_quantity,
    "samples": _is_quantity,
    "round": _is_integer,
    "batch": _is_integer,
    "version": _is_integer,
    "layers": _is_layer_range,
    "devices": _are_turns,
    "better": lambda value: isinstance(value, str),
}
_INSTANT_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "round": _is_integer,
    "batch": _is_integer,
    "cuts": _are_integers,
    "order": _are_names,
    "layers": _is_integer,
}
