"""The three kinds of record in a journal."""

from __future__ import annotations

import math
from typing import Any

import msgspec

__all__ = ["Instant", "JournalRecord", "Scalar", "Span", "readable_record"]


class JournalRecord(msgspec.Struct, frozen=True, tag_field="kind"):
    """Something that a node did or observed; `fields` has details (round, bytes, …)."""


class Span(JournalRecord, frozen=True, tag="span"):
    """The node was busy with `name` from `start` to `end`."""

    node: str
    name: str
    start: float
    end: float
    fields: dict[str, Any] = {}


class Instant(JournalRecord, frozen=True, tag="instant"):
    """`name` happened at time `at`."""

    node: str
    name: str
    at: float
    fields: dict[str, Any] = {}


class Scalar(JournalRecord, frozen=True, tag="scalar"):
    """The quantity `name` was `value` at time `at`."""

    node: str
    name: str
    at: float
    value: float
    fields: dict[str, Any] = {}


def readable_record(record: JournalRecord) -> JournalRecord | None:
    """The record without what JSON cannot express; None if nothing readable is left.

    JSON has neither NaN nor infinity: they would be written as `null`, which is no time and no value. A record of such
    times or of such a value is dropped; among its fields, only those that are not finite are.
    """
    match record:
        case Span(start=start, end=end) if not (math.isfinite(start) and math.isfinite(end)):
            return None
        case Instant(at=at) if not math.isfinite(at):
            return None
        case Scalar(at=at, value=value) if not (math.isfinite(at) and math.isfinite(value)):
            return None
        case Span(fields=fields) | Instant(fields=fields) | Scalar(fields=fields):
            finite = {name: value for name, value in fields.items() if _is_finite(value)}
            return record if len(finite) == len(fields) else msgspec.structs.replace(record, fields=finite)
    return record


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True
