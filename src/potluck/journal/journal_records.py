"""The three kinds of record of which a run's journal is made."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["Instant", "JournalRecord", "Scalar", "Span"]


class JournalRecord(msgspec.Struct, frozen=True, tag_field="kind"):
    """Something that a node did or saw; `fields` says more (round, bytes, …)."""


class Span(JournalRecord, frozen=True, tag="span"):
    """From `start` to `end` the node was busy with `name`."""

    node: str
    name: str
    start: float
    end: float
    fields: dict[str, Any] = {}


class Instant(JournalRecord, frozen=True, tag="instant"):
    """At `at`, `name` happened."""

    node: str
    name: str
    at: float
    fields: dict[str, Any] = {}


class Scalar(JournalRecord, frozen=True, tag="scalar"):
    """At `at`, the quantity `name` was `value`."""

    node: str
    name: str
    at: float
    value: float
    fields: dict[str, Any] = {}
