"""The three kinds of record in a journal."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Instant", "JournalRecord", "Scalar", "Span"]


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
